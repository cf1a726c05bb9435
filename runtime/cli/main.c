/* main.c: owns the choice of the command. */
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "pivotkv/version.h"
#include "runtime/cli/cli.h"

static const struct pkvi_command commands[] = {
    {"generate", "continue one prompt", pkvi_cmd_generate},
    {"chat", "talk with a model, turn by turn", pkvi_cmd_chat},
    {"tokenize", "token ids of a text, and back", pkvi_cmd_tokenize},
    {"eval", "logits and perplexity of a text", pkvi_cmd_eval},
    {"bench", "speed of prompts and of decoding at depths", pkvi_cmd_bench},
    {"quality", "how far policies are from full attention", pkvi_cmd_quality},
    {"link", "speed between host and device memory", pkvi_cmd_link},
    {"plan", "what memory a session would take, and where", pkvi_cmd_plan},
    {"inspect", "what is in a model file", pkvi_cmd_inspect},
    {"calibrate", "measure once what rehearsal asks of a model", pkvi_cmd_calibrate},
    {"doctor", "what this machine has, and what to change", pkvi_cmd_doctor},
};
#define COMMAND_COUNT (sizeof commands / sizeof commands[0])

static const struct pkvi_command *find(const char *name)
{
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].name, name) == 0) {
            return &commands[i];
        }
    }
    return NULL;
}

static int refuse(const char *name)
{
    return pkvi_say_usage("'%.100s' is not a command (see pivotkv --help)", name);
}

static int print_help(void)
{
    pkvi_out_printf("usage: pivotkv COMMAND [OPTION...]\n\n"
                    "PivotKV runs large language models with the KV cache in host memory.\n\n"
                    "commands:\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        pkvi_out_printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    pkvi_out_printf("  %-10s %s\n", "help", "this list, or the options of a command");
    pkvi_out_printf("\npivotkv COMMAND --help tells a command's options; pivotkv --version what "
                    "this is.\n");
    return pkvi_out_end(PKV_EXIT_OK);
}

static int print_version(void)
{
    pkvi_out_printf("pivotkv %s\ncommit %s\nbuild %s\n", pkv_version(), pkv_commit(), pkv_build());
    return pkvi_out_end(PKV_EXIT_OK);
}

static int run(const struct pkvi_command *command, int argc, char **argv)
{
    pkvi_say_command(command->name);
    return command->run(argc, argv);
}

/* pivotkv help [COMMAND] */
static int help(int argc, char **argv)
{
    if (argc < 2) {
        return print_help();
    }
    if (argc > 2) {
        return pkvi_say_usage("'%.100s' is one argument too many (see pivotkv --help)", argv[2]);
    }
    const struct pkvi_command *command = find(argv[1]);
    char name[] = "help", option[] = "--help";
    char *words[] = {name, option, NULL};
    return command != NULL ? run(command, 2, words) : refuse(argv[1]);
}

/* A file opened later must not become stdin, stdout or stderr. Writing to a stdout that was closed
 * still fails: it becomes one that can only be read. */
static void hold_standard_files(void)
{
    for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++) {
        if (fcntl(file, F_GETFD) == -1) {
            open("/dev/null", file == STDERR_FILENO ? O_WRONLY : O_RDONLY);
        }
    }
}

int main(int argc, char **argv)
{
    hold_standard_files();
    signal(SIGPIPE, SIG_IGN);
    setlocale(LC_CTYPE, ""); /* only for the characters of the line editor */
    if (argc < 2) {
        return pkvi_say_usage("a command is missing (see pivotkv --help)");
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) {
        return print_help();
    }
    if (strcmp(name, "--version") == 0) {
        return print_version();
    }
    if (strcmp(name, "help") == 0) {
        return help(argc - 1, argv + 1);
    }
    const struct pkvi_command *command = find(name);
    return command != NULL ? run(command, argc - 1, argv + 1) : refuse(name);
}
