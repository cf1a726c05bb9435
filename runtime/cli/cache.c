/* cache.c: owns where the cache folder is. What is in it others know. */
#include "runtime/cli/cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char *join(const char *dir, const char *below, const char *folder, const char *name)
{
    const size_t bytes = strlen(dir) + strlen(below) + strlen(folder) + strlen(name) + 3;
    char *path = malloc(bytes);
    if (path != NULL) {
        snprintf(path, bytes, "%s%s/%s/%s", dir, below, folder, name);
    }
    return path;
}

char *pkvi_cache_path(const char *given, const char *folder, const char *name)
{
    const char *cache = getenv("XDG_CACHE_HOME");
    if (given != NULL) {
        return join(given, "", folder, name);
    }
    if (cache != NULL && cache[0] == '/') {
        return join(cache, "/pivotkv", folder, name);
    }
    const char *home = getenv("HOME");
    return home != NULL ? join(home, "/.cache/pivotkv", folder, name) : NULL;
}

bool pkvi_cache_make_folders(const char *path)
{
    char *copy = strdup(path);
    bool ok = copy != NULL;
    for (char *at = ok ? strchr(copy + 1, '/') : NULL; ok && at != NULL; at = strchr(at + 1, '/')) {
        *at = '\0';
        ok = access(copy, F_OK) == 0 || mkdir(copy, 0700) == 0 || errno == EEXIST;
        *at = '/';
    }
    free(copy);
    return ok;
}
