/* file.c: a temporary name beside the file, fsync, rename, fsync of the folder. */
#include "runtime/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/base/check.h"

enum pkv_status pkvi_new_file_open(const char *path, struct pkvi_new_file *file)
{
    *file = (struct pkvi_new_file){.file = -1, .path = path};
    if (!path || path[0] == '\0') {
        return PKV_FAIL(PKV_ERR_INVALID, "write a file: no path");
    }
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        return PKV_FAIL(PKV_ERR_IO, "%.200s: is there and is no regular file", path);
    }
    const size_t bytes = strlen(path) + 32;
    file->name = malloc(bytes);
    if (!file->name) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "name of a file: %zu bytes", bytes);
    }
    (void)snprintf(file->name, bytes, "%s.%ld.tmp", path, (long)getpid());
    file->file = open(file->name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file->file < 0) {
        const int error = errno;
        free(file->name);
        file->name = NULL;
        return PKV_FAIL(PKV_ERR_IO, "%.200s: cannot write beside it: %s", path, strerror(error));
    }
    return PKV_OK;
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
        free(file->name);
        file->name = NULL;
        return PKV_OK;
    }
    const int error = file->error;
    pkvi_new_file_discard(file);
    return PKV_FAIL(PKV_ERR_IO, "%.200s: not written: %s", file->path, strerror(error));
}

void pkvi_new_file_discard(struct pkvi_new_file *file)
{
    if (file->file >= 0) {
        close(file->file);
    }
    if (file->name) {
        (void)unlink(file->name);
        free(file->name);
    }
    file->file = -1;
    file->name = NULL;
}
