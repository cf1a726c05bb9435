/* say.c: owns stderr: the one line that says why a command failed, and the figures. */
#include "runtime/cli/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "pivotkv/status.h"

static const char *command_name;
static bool is_quiet;

void pkvi_say_command(const char *name)
{
    command_name = name;
}

void pkvi_say_quiet(bool quiet)
{
    is_quiet = quiet;
}

/* A value that a user typed may hold anything; the message stays one line of harmless bytes. */
static void say(const char *format, va_list arguments)
{
    char text[1024];
    int bytes = vsnprintf(text, sizeof text, format, arguments);
    if (bytes < 0) {
        snprintf(text, sizeof text, "%s", format);
    }
    for (char *at = text; *at != '\0'; at++) {
        if ((unsigned char)*at < 0x20 || *at == 0x7f) {
            *at = '?';
        }
    }
    if (command_name != NULL) {
        fprintf(stderr, "pivotkv: %s: %s\n", command_name, text);
    } else {
        fprintf(stderr, "pivotkv: %s\n", text);
    }
}

int pkvi_say_failure(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    return PKV_EXIT_FAILED;
}

int pkvi_say_usage(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    say(format, arguments);
    va_end(arguments);
    return PKV_EXIT_USAGE;
}

int pkvi_say_library_failure(void)
{
    return pkvi_say_failure("%s", pkv_error_text());
}

void pkvi_say_note(const char *format, ...)
{
    if (is_quiet) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

void pkvi_say_progress(const char *format, ...)
{
    if (is_quiet || !isatty(STDERR_FILENO)) {
        return;
    }
    fputs("\r\033[K", stderr); /* to the line's beginning, and erase it */
    if (format != NULL) {
        va_list arguments;
        va_start(arguments, format);
        vfprintf(stderr, format, arguments);
        va_end(arguments);
    }
    fflush(stderr);
}

struct pkvi_size_text pkvi_size_text(uint64_t bytes)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    struct pkvi_size_text size;
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024.0 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024.0;
        unit++;
    }
    snprintf(size.text, sizeof size.text, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return size;
}
