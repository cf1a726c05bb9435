/* signals.c: owns what Ctrl-C, SIGTERM and a closed pipe do. */
#include "runtime/cli/cli.h"

#include <string.h>
#include <unistd.h>

volatile sig_atomic_t pkvi_signal;

static void on_signal(int number)
{
    if (pkvi_signal != 0) {
        _exit(128 + number);
    }
    pkvi_signal = number;
}

void pkvi_signals_catch(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_handler = on_signal; /* no SA_RESTART: a waiting read must notice */
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int pkvi_signals_exit(int code)
{
    return pkvi_signal != 0 ? 128 + (int)pkvi_signal : code;
}
