/* kept.h: --kv-save and --kv-load: tokens with their K and V that outlive the program. */
#ifndef PKV_CLI_KEPT_H
#define PKV_CLI_KEPT_H

#include "runtime/cli/cli.h"
#include "runtime/cli/engine.h"

struct pkvi_kept {
    const char *save, *load;    /* options; NULL = not given */
    struct pkv_saved *saved;    /* of `load`, or NULL */
    struct pkv_saved_info info; /* of `saved` */
};

struct pkvi_option_set pkvi_kept_options(struct pkvi_kept *kept);
/* Before the weights are loaded: open and check the one file, look whether the other one could be
 * written. Words its own failure: false. */
bool pkvi_kept_open(struct pkvi_kept *kept);
/* A sequence with what is in the file, or an empty one where there is none. */
bool pkvi_kept_seq(struct pkvi_kept *kept, struct pkvi_engine *engine, struct pkv_seq **seq_out);
/* Where --kv-save was given and the sequence has a token. */
bool pkvi_kept_save(const struct pkvi_kept *kept, struct pkv_seq *seq, const int32_t *ids,
                    size_t count, const struct pkvi_bytes *note);
void pkvi_kept_close(struct pkvi_kept *kept);

/*
 * The turns of a chat as a note: "pivotkv chat 1\n", then for each message "ROLE BYTES\n", its
 * bytes and "\n". Adding: false without memory. Reading: *at moves on; 1 = a message, whose texts
 * lie in the note, 0 = the end, -1 = it is none.
 */
bool pkvi_note_begin(struct pkvi_bytes *note);
bool pkvi_note_add(struct pkvi_bytes *note, const char *role, const char *text, size_t bytes);
int pkvi_note_next(const char *note, size_t note_bytes, size_t *at, const char **role_out,
                   const char **text_out, size_t *bytes_out);

#endif
