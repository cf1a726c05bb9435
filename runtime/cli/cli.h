/*
 * cli.h: what the sub-commands share: messages, output, signals, files, records.
 * The options are in options.h, a loaded model in engine.h.
 */
#ifndef PKV_CLI_H
#define PKV_CLI_H

#include <jansson.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pkv_ids;

/* Exit codes. PKV_GO_ON is not one: the command is to go on. */
enum pkvi_exit { PKV_GO_ON = -1, PKV_EXIT_OK = 0, PKV_EXIT_FAILED = 1, PKV_EXIT_USAGE = 2 };

struct pkvi_command {
    const char *name, *summary;
    int (*run)(int argc, char **argv); /* argv[0] is the command's name; gives the exit code */
};

int pkvi_cmd_generate(int argc, char **argv);
int pkvi_cmd_chat(int argc, char **argv);
int pkvi_cmd_plan(int argc, char **argv);
int pkvi_cmd_inspect(int argc, char **argv);
int pkvi_cmd_tokenize(int argc, char **argv);
int pkvi_cmd_eval(int argc, char **argv);
int pkvi_cmd_bench(int argc, char **argv);
int pkvi_cmd_quality(int argc, char **argv);
int pkvi_cmd_link(int argc, char **argv);
int pkvi_cmd_calibrate(int argc, char **argv);
int pkvi_cmd_doctor(int argc, char **argv);

/* say.c: one line on stderr, "pivotkv: COMMAND: ...", whatever bytes the text holds. */

/* The command that later messages name; NULL = none yet. */
void pkvi_say_command(const char *name);
/* Gives PKV_EXIT_FAILED. */
int pkvi_say_failure(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Gives PKV_EXIT_USAGE. */
int pkvi_say_usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* pkv_error_text() of the call that just failed; gives PKV_EXIT_FAILED. */
int pkvi_say_library_failure(void);
/* Plans and figures: the line alone; nothing after pkvi_say_quiet(true). */
void pkvi_say_quiet(bool quiet);
void pkvi_say_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A line that the next one writes over, only if a person sees stderr; NULL takes it away. */
void pkvi_say_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* A size for people, such as "180.0 MiB"; the array is the caller's. */
struct pkvi_size_text {
    char text[24];
};
struct pkvi_size_text pkvi_size_text(uint64_t bytes);

/* out.c: stdout. Every write is checked; the first failure is said once and then remembered. */
void pkvi_out_write(const char *data, size_t bytes);
void pkvi_out_printf(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Gives false once anything could not be written. */
bool pkvi_out_flush(void);
/* Flush and close at the end of a command: `code`, or PKV_EXIT_FAILED. */
int pkvi_out_end(int code);
/* The last byte written so far; '\n' if none was. */
char pkvi_out_last(void);

/* signals.c: the first SIGINT or SIGTERM is remembered, the second ends the program at once. */
extern volatile sig_atomic_t pkvi_signal;
void pkvi_signals_catch(void);
/* Wait until `file` can be read: true; false as soon as a signal has come (pkvi_signal). */
bool pkvi_signals_wait_input(int file);
/* Exit code after a signal: 130 or 143; `code` if there was none. */
int pkvi_signals_exit(int code);

/* file.c: whole files, "-" = stdin. */
struct pkvi_bytes {
    char *data;
    size_t bytes, capacity;
};
/* Append; false, with nothing changed, if there is no memory. */
bool pkvi_bytes_add(struct pkvi_bytes *text, const char *data, size_t bytes);
/* Words its own failure: false. Freed with free(bytes_out->data). */
bool pkvi_file_read(const char *path, struct pkvi_bytes *bytes_out);
/* `text` if it is not NULL, else the file's bytes. */
bool pkvi_input_read(const char *text, const char *path, struct pkvi_bytes *bytes_out);
/* Append the ids of a text of decimal numbers; `name` is for messages. */
bool pkvi_ids_parse(const struct pkvi_bytes *text, const char *name, uint32_t vocab,
                    struct pkv_ids *ids);
/* How messages call a path. */
const char *pkvi_file_name(const char *path);

/* record.c: one JSON object a line on stdout. A failed allocation shows when it is written. */
struct pkvi_record {
    json_t *root;
    bool failed;
};
/* Holds schema ("pivotkv/NAME/1"), build, commit, machine. */
void pkvi_record_begin(struct pkvi_record *record, const char *name);
void pkvi_record_set(struct pkvi_record *record, const char *key, json_t *value);
void pkvi_record_text(struct pkvi_record *record, const char *key, const char *text);
void pkvi_record_int(struct pkvi_record *record, const char *key, uint64_t value);
/* null where it is not finite. */
void pkvi_record_real(struct pkvi_record *record, const char *key, double value);
void pkvi_record_ids(struct pkvi_record *record, const char *key, const int32_t *ids, size_t count);
/* Writes the line and frees the record: `code`, or PKV_EXIT_FAILED. */
int pkvi_record_end(struct pkvi_record *record, int code);
json_t *pkvi_json_real(double value);
/* Writes what the library made: a text as it is, or one JSON object with the members of a record
 * before its own. Frees it; gives the exit code. */
int pkvi_out_library_text(const char *name, bool json, char *text);

/* clock.c: time and memory of this process. */
uint64_t pkvi_now_ns(void);
double pkvi_seconds(uint64_t ns);
/* count per second, 0 if no time passed. */
double pkvi_rate(uint64_t count, uint64_t ns);
uint64_t pkvi_peak_rss_bytes(void);

#endif
