/* out.c: owns stdout. Nothing else in the program writes to it. */
#include "runtime/cli/cli.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    char data[65536];
    size_t bytes;
    char last;
    bool failed;
} out = {.last = '\n'};

static bool fail(void)
{
    if (!out.failed) {
        pkvi_say_failure("cannot write to stdout: %s", strerror(errno));
    }
    out.failed = true;
    out.bytes = 0;
    return false;
}

bool pkvi_out_flush(void)
{
    size_t at = 0;
    while (at < out.bytes && !out.failed) {
        ssize_t written = write(STDOUT_FILENO, out.data + at, out.bytes - at);
        if (written >= 0) {
            at += (size_t)written;
        } else if (errno == EAGAIN) {
            struct pollfd wait = {.fd = STDOUT_FILENO, .events = POLLOUT};
            poll(&wait, 1, -1);
        } else if (errno != EINTR) {
            return fail();
        }
    }
    out.bytes = 0;
    return !out.failed;
}

void pkvi_out_write(const char *data, size_t bytes)
{
    if (bytes > 0) {
        out.last = data[bytes - 1];
    }
    while (bytes > 0 && !out.failed) {
        size_t room = sizeof out.data - out.bytes;
        size_t part = bytes < room ? bytes : room;
        memcpy(out.data + out.bytes, data, part);
        out.bytes += part;
        data += part;
        bytes -= part;
        if (out.bytes == sizeof out.data) {
            pkvi_out_flush();
        }
    }
}

void pkvi_out_printf(const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    int bytes = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (bytes > 0) {
        size_t most = sizeof text - 1;
        pkvi_out_write(text, (size_t)bytes < most ? (size_t)bytes : most);
    }
}

char pkvi_out_last(void)
{
    return out.last;
}

int pkvi_out_end(int code)
{
    pkvi_out_flush();
    if (!out.failed && close(STDOUT_FILENO) != 0 && errno != EINTR) {
        fail();
    }
    return out.failed && code == PKV_EXIT_OK ? PKV_EXIT_FAILED : code;
}
