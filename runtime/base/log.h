/* log.h: saying something from inside the library. */
#ifndef PKV_BASE_LOG_H
#define PKV_BASE_LOG_H

#include "pivotkv/log.h"

/*
 * One line; `area` is the part that speaks ("device", "gguf"). Cost: one load where nobody listens
 * to the level; else a lock, a line on the stack and the sink. Not for loops over tokens.
 */
void pkvi_log(enum pkv_log_level level, const char *area, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
