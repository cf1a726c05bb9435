/* file.h: files that appear whole or not at all, and whole files. */
#ifndef PKV_BASE_FILE_H
#define PKV_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

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

/* The bytes of a regular file of at most so many, freed with free(), 0 behind them. PKV_ERR_IO: it
 * is none, is larger, cannot be read; PKV_ERR_NO_MEMORY. */
enum pkv_status pkvi_file_load(const char *path, uint64_t most_bytes, char **data_out,
                               uint64_t *bytes_out);

#endif
