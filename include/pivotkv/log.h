/* log.h: what the library has to say besides statuses. It prints nothing itself. */
#ifndef PIVOTKV_LOG_H
#define PIVOTKV_LOG_H

#include <stdbool.h>

#include "pivotkv/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum pkv_log_level { PKV_LOG_ERROR, PKV_LOG_WARN, PKV_LOG_INFO, PKV_LOG_DEBUG };

/* One line without its end; borrowed for the call. Calls come from any thread, one at a time. */
typedef void (*pkv_log_fn)(void *context, enum pkv_log_level level, const char *line);

/*
 * Hand lines of `level` and more urgent ones to sink; NULL (the start): none are made. A line is
 * "area: text", or with json an object {"time_ns", "level", "area", "text"}, at most 1023 bytes.
 * Threads: any time; after it returns the old sink is no longer called.
 */
PKV_API void pkv_log_set(enum pkv_log_level level, bool json, pkv_log_fn sink, void *context);

/* "error", "warn", "info", "debug"; NULL for an unknown number. */
PKV_API const char *pkv_log_level_name(enum pkv_log_level level);

/* Reads such a name. PKV_ERR_INVALID if it is none of them; nothing is written then. */
PKV_API enum pkv_status pkv_log_level_parse(const char *name, enum pkv_log_level *level_out);

#ifdef __cplusplus
}
#endif
#endif
