/* cache.h: the folder for what is kept between runs. */
#ifndef PKV_CLI_CACHE_H
#define PKV_CLI_CACHE_H

#include <stdbool.h>

/* CACHE/FOLDER/NAME, free() it: CACHE is what was given, else $XDG_CACHE_HOME/pivotkv, else
 * ~/.cache/pivotkv. NULL: there is no such place, or no memory. */
char *pkvi_cache_path(const char *given, const char *folder, const char *name);
/* Make the folders before the last '/' of a path that are not there; false: errno says why. */
bool pkvi_cache_make_folders(const char *path);

#endif
