/* file.h: files that appear whole or not at all. */
#ifndef PKV_BASE_FILE_H
#define PKV_BASE_FILE_H

#include <stddef.h>

#include "pivotkv/status.h"

/*
 * A file that is being written under another name beside its own: `path` holds the old bytes, or
 * none, until commit() has all of the new ones on disk.
 */
struct pkvi_new_file {
    int file;   /* -1 = none is open */
    int error;  /* errno of the first failure */
    char *name; /* the other name */
    char *path; /* behind symbolic links */
};

/*
 * A symbolic link stays: what it names is written. A file that is there keeps its permissions; a
 * new one gets those of `mode` that the umask leaves. PKV_ERR_IO: nothing can be written beside it.
 */
enum pkv_status pkvi_new_file_open(const char *path, unsigned mode, struct pkvi_new_file *file_out);
/* A failure is kept and told by commit(). */
void pkvi_new_file_write(struct pkvi_new_file *file, const void *data, size_t bytes);
/* To disk, then renamed. PKV_ERR_IO: the other name is gone, `path` as it was. Closed either way.
 */
enum pkv_status pkvi_new_file_commit(struct pkvi_new_file *file);
/* Close it and leave nothing. After commit() it does nothing. */
void pkvi_new_file_discard(struct pkvi_new_file *file);

#endif
