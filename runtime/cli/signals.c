/* signals.c: owns what Ctrl-C, SIGTERM and a closed pipe do. */
#include "runtime/cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

volatile sig_atomic_t pkvi_signal;

/* A signal that comes between the look at pkvi_signal and a read would be noticed too late: it also
 * writes here. Any thread may run the handler. */
static int wake[2] = {-1, -1};

static void on_signal(int number)
{
    if (pkvi_signal != 0) {
        _exit(128 + number);
    }
    pkvi_signal = number;
    int saved = errno;
    if (wake[1] >= 0 && write(wake[1], "", 1) < 0) {
        errno = 0; /* the pipe is full: whoever waits wakes anyway */
    }
    errno = saved;
}

bool pkvi_signals_wait_input(int file)
{
    while (pkvi_signal == 0) {
        struct pollfd files[2] = {{.fd = file, .events = POLLIN},
                                  {.fd = wake[0], .events = POLLIN}};
        int ready = poll(files, 2, -1);
        if (ready < 0 && errno != EINTR) {
            return true; /* the read will say what is wrong */
        }
        char old[16];
        while (ready > 0 && files[1].revents != 0 && read(wake[0], old, sizeof old) > 0) {
        }
        if (ready > 0 && files[0].revents != 0) {
            return pkvi_signal == 0;
        }
    }
    return false;
}

void pkvi_signals_catch(void)
{
    struct sigaction action;
    if (wake[0] < 0 && pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) {
        wake[0] = wake[1] = -1; /* then only the read itself is interrupted */
    }
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal; /* no SA_RESTART: a waiting read must notice */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    action.sa_handler = SIG_IGN; /* a file that may not grow: the write says so */
    sigaction(SIGXFSZ, &action, NULL);
}

int pkvi_signals_exit(int code)
{
    return pkvi_signal != 0 ? 128 + (int)pkvi_signal : code;
}
