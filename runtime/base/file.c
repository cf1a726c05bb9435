/* file.c: a temporary name beside the file, fsync, rename, fsync of the folder; reading whole ones.
 */
#include "runtime/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/check.h"

static void forget(struct pkvi_new_file *file)
{
    free(file->name);
    free(file->path);
    file->name = file->path = NULL;
}

static enum pkv_status open_beside(struct pkvi_new_file *file, unsigned mode)
{
    struct stat old;
    const bool is_there = stat(file->path, &old) == 0;
    if (is_there && !S_ISREG(old.st_mode)) {
        return PKV_FAIL(PKV_ERR_IO, "%.200s: is there and is no regular file", file->path);
    }
    const size_t bytes = strlen(file->path) + 32;
    file->name = malloc(bytes);
    if (!file->name) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "name of a file: %zu bytes", bytes);
    }
    (void)snprintf(file->name, bytes, "%s.%ld.tmp", file->path, (long)getpid());
    file->file = open(file->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, (mode_t)mode);
    if (file->file < 0) {
        return PKV_FAIL(PKV_ERR_IO, "%.200s: cannot write beside it: %s", file->path,
                        strerror(errno));
    }
    if (is_there) { /* a file system without permissions: nothing to keep */
        (void)fchmod(file->file, old.st_mode & 07777);
    }
    return PKV_OK;
}

enum pkv_status pkvi_new_file_open(const char *path, unsigned mode, struct pkvi_new_file *file)
{
    *file = (struct pkvi_new_file){.file = -1};
    if (!path || path[0] == '\0') {
        return PKV_FAIL(PKV_ERR_INVALID, "write a file: no path");
    }
    file->path = realpath(path, NULL); /* NULL where nothing is there yet */
    if (!file->path) {
        file->path = strdup(path);
    }
    if (!file->path) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "name of a file");
    }
    const enum pkv_status status = open_beside(file, mode);
    if (status != PKV_OK) {
        forget(file);
    }
    return status;
}

void pkvi_new_file_write(struct pkvi_new_file *file, const void *data, size_t bytes)
{
    const char *at = data;
    while (file->error == 0 && bytes > 0) {
        const ssize_t written = write(file->file, at, bytes);
        if (written < 0 && errno != EINTR) {
            file->error = errno;
        }
        at += written > 0 ? written : 0;
        bytes -= written > 0 ? (size_t)written : 0;
    }
}

/* The rename itself lasts only when the folder is on disk too; a file system that cannot do that
 * has done what it can. */
static void sync_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash == path ? strdup("/")
                   : slash       ? strndup(path, (size_t)(slash - path))
                                 : strdup(".");
    const int file = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (file >= 0) {
        (void)fsync(file);
        close(file);
    }
    free(folder);
}

enum pkv_status pkvi_new_file_commit(struct pkvi_new_file *file)
{
    if (file->error == 0 && fsync(file->file) != 0) {
        file->error = errno;
    }
    if (close(file->file) != 0 && file->error == 0 && errno != EINTR) {
        file->error = errno;
    }
    file->file = -1;
    if (file->error == 0 && rename(file->name, file->path) != 0) {
        file->error = errno;
    }
    if (file->error == 0) {
        sync_folder(file->path);
        forget(file);
        return PKV_OK;
    }
    (void)PKV_FAIL(PKV_ERR_IO, "%.200s: not written: %s", file->path, strerror(file->error));
    pkvi_new_file_discard(file);
    return PKV_ERR_IO;
}

void pkvi_new_file_discard(struct pkvi_new_file *file)
{
    if (file->file >= 0) {
        close(file->file);
    }
    if (file->name) {
        (void)unlink(file->name);
    }
    file->file = -1;
    forget(file);
}

/* Up to *bytes; how many there were, or the errno. */
static int read_all(int file, char *data, uint64_t *bytes)
{
    uint64_t at = 0;
    ssize_t got = 1;
    while (at < *bytes && (got > 0 || (got < 0 && errno == EINTR))) {
        got = read(file, data + at, *bytes - at);
        at += got > 0 ? (uint64_t)got : 0;
    }
    *bytes = at;
    return got < 0 ? errno : 0;
}

enum pkv_status pkvi_file_load(const char *path, uint64_t most_bytes, char **data_out,
                               uint64_t *bytes_out)
{
    struct stat info;
    const int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0 || fstat(file, &info) != 0) {
        const int error = errno;
        if (file >= 0) {
            close(file);
        }
        return PKV_FAIL(PKV_ERR_IO, "%.200s: %s", path, strerror(error));
    }
    if (!S_ISREG(info.st_mode) || (uint64_t)info.st_size > most_bytes) {
        close(file);
        return PKV_FAIL(PKV_ERR_IO, "%.200s: expected a regular file of at most %llu bytes", path,
                        (unsigned long long)most_bytes);
    }
    uint64_t bytes = (uint64_t)info.st_size;
    char *data = malloc(bytes + 1);
    const int error = data ? read_all(file, data, &bytes) : 0;
    close(file);
    if (!data || error != 0) {
        free(data);
        return data ? PKV_FAIL(PKV_ERR_IO, "%.200s: %s", path, strerror(error))
                    : PKV_FAIL(PKV_ERR_NO_MEMORY, "%.200s: %llu bytes", path,
                               (unsigned long long)bytes);
    }
    data[bytes] = '\0';
    *data_out = data;
    *bytes_out = bytes;
    return PKV_OK;
}
