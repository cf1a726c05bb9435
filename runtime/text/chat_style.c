/*
 * chat_style.c: which style a chat template asks for.
 *
 * Owns the families. A template is recognised by its markers, and believed only if each thing it
 * prints is one that its family is known to print: then the style gives exactly what the template
 * gives. Templates are facts of their model files; each form below stands beside the models it was
 * seen in, and tests/golden/chat.json has their texts.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/check.h"
#include "runtime/text/chat.h"

#define FAMILIES "chatml|llama2|llama3|gemma|mistral|phi3|zephyr"

/* --- the usual style of each family --- */

static const struct pkvi_chat_style usual[] = {
    {
        .family = "chatml",
        .marker = {"<|im_start|>", "<|im_end|>"},
        .end = "<|im_end|>",
        .start = "",
        .before = {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"},
        .after = {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"},
        .generation = "<|im_start|>assistant\n",
        .later_system = true,
    },
    {
        .family = "llama2",
        .marker = {"[INST]", "[/INST]"},
        .start = "",
        .before = {"", "\001[INST] ", " "},
        .after = {"", " [/INST]", " \002"},
        .generation = "",
        .system = PKVI_SYSTEM_FIRST_USER,
        .system_before = "<<SYS>>\n",
        .system_after = "\n<</SYS>>\n\n",
        .alternates = true,
        .trim = {false, true, true},
        .trim_whole = true,
    },
    {
        .family = "llama3",
        .marker = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
        .end = "<|eot_id|>",
        .start = "\001",
        .before = {"<|start_header_id|>system<|end_header_id|>\n\n",
                   "<|start_header_id|>user<|end_header_id|>\n\n",
                   "<|start_header_id|>assistant<|end_header_id|>\n\n"},
        .after = {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"},
        .generation = "<|start_header_id|>assistant<|end_header_id|>\n\n",
        .later_system = true,
        .trim = {true, true, true},
    },
    {
        .family = "gemma",
        .marker = {"<start_of_turn>", "<end_of_turn>"},
        .end = "<end_of_turn>",
        .start = "\001",
        .before = {"", "<start_of_turn>user\n", "<start_of_turn>model\n"},
        .after = {"", "<end_of_turn>\n", "<end_of_turn>\n"},
        .generation = "<start_of_turn>model\n",
        .system = PKVI_SYSTEM_FIRST_USER,
        .system_before = "",
        .system_after = "\n\n",
        .alternates = true,
        .trim = {false, true, true},
    },
    {
        .family = "mistral",
        .marker = {"[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
        .start = "\001",
        .before = {"[SYSTEM_PROMPT] ", "[INST] ", " "},
        .after = {"[/SYSTEM_PROMPT]", "[/INST]", "\002"},
        .generation = "",
        .system = PKVI_SYSTEM_FIRST_USER,
        .system_before = "",
        .system_after = "\n\n",
        .alternates = true,
    },
    {
        .family = "phi3",
        .marker = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"},
        .end = "<|end|>",
        .start = "",
        .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
        .after = {"<|end|>\n", "<|end|>\n", "<|end|>\n"},
        .generation = "<|assistant|>\n",
        .later_system = true,
    },
    {
        .family = "zephyr",
        .marker = {"<|system|>", "<|user|>", "<|assistant|>"},
        .start = "",
        .before = {"<|system|>\n", "<|user|>\n", "<|assistant|>\n"},
        .after = {"\002\n", "\002\n", "\002\n"},
        .generation = "<|assistant|>\n",
        .later_system = true,
    },
};
enum family { CHATML, LLAMA2, LLAMA3, GEMMA, MISTRAL, PHI3, ZEPHYR, FAMILY_COUNT };

/* --- what the templates print --- */

enum output {
    MESSAGE, /* a turn of any role */
    USER,    /* of one role */
    ASSISTANT,
    SYSTEM,      /* the first message, known to be the system's */
    SYSTEM_USER, /* the user's turn with the system text in it */
    GENERATION,
    BOS,
    DEFAULT, /* the turn of a default system text */
    NO_GENERATION,
    BARE_CONTENT, /* Qwen3, Llama 3: a turn made in a variable */
    THOUGHT,      /* Qwen3: an answer with its reasoning */
    TURN_END,
    ASSISTANT_TRIM,
    ASSISTANT_TIGHT, /* no space before the answer */
    ASSISTANT_SPACE, /* ... but one behind its end */
    USER_OPEN,       /* the user's turn opens the assistant's */
    USER_WIDE,       /* spaces around both markers of the user's turn */
    USER_TIGHT,      /* none at all */
    USER_SPACED,     /* a space after [INST] and before [/INST] */
    USER_NO_BOS,
    NEVER_PRINTED, /* behind a condition that cannot be met */
};
#define SEEN(s, output) (((s)->seen >> (output)&1u) != 0)

/* `*`: any text of a literal, kept. In the normal form of chat.h. */
static const struct known {
    enum family family;
    enum output output;
    const char *pattern;
} known[] = {
    // SmolLM, SmolLM2, Qwen2, Qwen2.5, Qwen3, OpenHermes-2.5, ...
    {CHATML, MESSAGE, "'<|im_start|>'+message.role+'\\n'+message.content+'<|im_end|>\\n'"},
    {CHATML, SYSTEM, "'<|im_start|>system\\n'+messages[0].content+'<|im_end|>\\n'"},
    {CHATML, DEFAULT, "'<|im_start|>system\\n*<|im_end|>\\n'"},
    {CHATML, GENERATION, "'<|im_start|>assistant\\n*'"},
    {CHATML, BOS, "bos_token"},
    // Qwen3
    {CHATML, BARE_CONTENT, "'<|im_start|>'+message.role+'\\n'+content"},
    {CHATML, THOUGHT,
     "'<|im_start|>'+message.role+'\\n<think>\\n'+reasoning_content.strip('\\n')+'\\n</"
     "think>\\n\\n'"
     "+content.lstrip('\\n')"},
    {CHATML, TURN_END, "'<|im_end|>\\n'"},
    // Llama-2-chat; with a default system text
    {LLAMA2, USER, "bos_token+'[INST] '+content.strip()+' [/INST]'"},
    {LLAMA2, USER_NO_BOS, "'[INST] '+content.strip()+' [/INST]'"},
    {LLAMA2, BOS, "bos_token"},
    {LLAMA2, ASSISTANT, "' '+content.strip()+' '+eos_token"},
    {LLAMA2, NEVER_PRINTED, "'<<SYS>>\\n'+content.strip()+'\\n<</SYS>>\\n\\n'"},
    // Llama-3; 3.1, 3.2, 3.3
    {LLAMA3, BARE_CONTENT, "content"},
    {LLAMA3, BOS, "bos_token"},
    {LLAMA3, SYSTEM,
     "'<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December "
     "2023\\nToday "
     "Date: '+date_string+'\\n\\n'+system_message+'<|eot_id|>'"},
    {LLAMA3, MESSAGE,
     "'<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'+message.content|trim+'<|eot_id|>"
     "'"},
    {LLAMA3, GENERATION, "'<|start_header_id|>assistant<|end_header_id|>\\n\\n'"},
    // Gemma 1 and 2; 3
    {GEMMA, BOS, "bos_token"},
    {GEMMA, MESSAGE, "'<start_of_turn>'+role+'\\n'+message.content|trim+'<end_of_turn>\\n'"},
    {GEMMA, SYSTEM_USER,
     "'<start_of_turn>'+role+'\\n'+(first_user_prefixifloop.firstelse'')+message.content|trim"
     "+'<end_of_turn>\\n'"},
    {GEMMA, GENERATION, "'<start_of_turn>model\\n'"},
    // Mistral 7B v0.1, v0.2; "v1"; "v3" (7B v0.3); "tekken" (Nemo)
    {MISTRAL, BOS, "bos_token"},
    {MISTRAL, USER_SPACED, "'[INST] '+message.content+' [/INST]'"},
    {MISTRAL, USER_WIDE, "' [INST] '+message.content+' [/INST]'"},
    {MISTRAL, USER, "'[INST] '+message.content+'[/INST]'"},
    {MISTRAL, USER_TIGHT, "'[INST]'+message.content+'[/INST]'"},
    {MISTRAL, SYSTEM_USER, "' [INST] '+system_message+'\\n\\n'+message.content+' [/INST]'"},
    {MISTRAL, SYSTEM_USER, "'[INST] '+system_message+'\\n\\n'+message.content+'[/INST]'"},
    {MISTRAL, SYSTEM_USER, "'[INST]'+system_message+'\\n\\n'+message.content+'[/INST]'"},
    {MISTRAL, ASSISTANT, "' '+message.content+eos_token"},
    {MISTRAL, ASSISTANT_TRIM, "' '+message.content|trim+eos_token"},
    {MISTRAL, ASSISTANT_TIGHT, "message.content+eos_token"},
    {MISTRAL, ASSISTANT_SPACE, "message.content+eos_token+' '"},
    // "v7" (Mistral Large 2411)
    {MISTRAL, SYSTEM, "'[SYSTEM_PROMPT] '+message.content+'[/SYSTEM_PROMPT]'"},
    // Phi-3 first form; second form, Phi-3.5
    {PHI3, BOS, "bos_token"},
    {PHI3, USER_OPEN, "'<|user|>\\n'+message.content+'<|end|>\\n<|assistant|>\\n'"},
    {PHI3, ASSISTANT_TIGHT, "message.content+'<|end|>\\n'"},
    {PHI3, SYSTEM, "'<|system|>\\n'+message.content+'<|end|>\\n'"},
    {PHI3, USER, "'<|user|>\\n'+message.content+'<|end|>\\n'"},
    {PHI3, ASSISTANT, "'<|assistant|>\\n'+message.content+'<|end|>\\n'"},
    {PHI3, GENERATION, "'<|assistant|>\\n'"},
    {PHI3, NO_GENERATION, "eos_token"},
    // Zephyr 7B, TinyLlama-1.1B-Chat
    {ZEPHYR, SYSTEM, "'<|system|>\\n'+message.content+eos_token+'\\n'"},
    {ZEPHYR, USER, "'<|user|>\\n'+message.content+eos_token+'\\n'"},
    {ZEPHYR, ASSISTANT, "'<|assistant|>\\n'+message.content+eos_token+'\\n'"},
    {ZEPHYR, GENERATION, "'<|assistant|>\\n'"},
    {ZEPHYR, BOS, "bos_token"},
};

struct span {
    const char *data;
    size_t bytes;
};

struct reading {
    const char *normal;
    enum family family;
    uint32_t seen; /* bit enum output */
    struct span kept[NEVER_PRINTED + 1];
};

static bool matches(const char *pattern, const char *text, size_t bytes, struct span *kept_out)
{
    size_t n = strlen(pattern);
    const char *star = strchr(pattern, '*');
    if (star == NULL) {
        return n == bytes && memcmp(pattern, text, n) == 0;
    }
    size_t head = (size_t)(star - pattern), tail = n - head - 1;
    if (bytes < head + tail || memcmp(pattern, text, head) != 0 ||
        memcmp(star + 1, text + bytes - tail, tail) != 0) {
        return false;
    }
    *kept_out = (struct span){text + head, bytes - head - tail};
    for (size_t i = 0; i < kept_out->bytes; i++) { // one literal, no marker inside
        char c = kept_out->data[i];
        if (c == '\'') {
            return false;
        }
        i += c == '\\';
        if (c == '<' && i + 1 < kept_out->bytes && kept_out->data[i + 1] == '|') {
            return false;
        }
    }
    return true;
}

static bool has(const struct reading *s, const char *text)
{
    return strstr(s->normal, text) != NULL;
}

/* Is this output known? Notes it. */
static bool note_output(struct reading *s, const char *text, size_t bytes)
{
    static const char raise[] = "raise_exception(";
    if (bytes >= sizeof raise - 1 && memcmp(text, raise, sizeof raise - 1) == 0) {
        return true;
    }
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        struct span kept = {"", 0};
        if (known[i].family == s->family && matches(known[i].pattern, text, bytes, &kept)) {
            struct span *before = &s->kept[known[i].output];
            bool again = SEEN(s, known[i].output);
            s->seen |= (uint32_t)1 << known[i].output;
            if (again &&
                (before->bytes != kept.bytes || memcmp(before->data, kept.data, kept.bytes) != 0)) {
                return false; // two texts for one thing: we would have to know when
            }
            *before = kept;
            return true;
        }
    }
    return false;
}

/* Every output of the template, in order; false: one of them is not known. */
static bool note_outputs(struct reading *s)
{
    const char *at = s->normal;
    while ((at = strchr(at, '{')) != NULL) {
        const char *from = at + 2;
        const char *to = from;
        char close = at[1] == '%' ? '%' : '}';
        while (*to != '\0' && !(to[0] == close && to[1] == '}')) {
            if (*to++ == '\'') {
                while (*to != '\0' && *to != '\'') {
                    to += *to == '\\' && to[1] != '\0' ? 2 : 1;
                }
                to += *to != '\0';
            }
        }
        if (close == '}' && !note_output(s, from, (size_t)(to - from))) {
            return false;
        }
        at = to;
    }
    return true;
}

/* A literal of the normal form as text; NULL: no memory, or an escape we do not have (*bad_out). */
static char *literal_text(struct span literal, bool *bad_out)
{
    char *text = malloc(literal.bytes + 1);
    size_t n = 0;
    *bad_out = false;
    for (size_t i = 0; text != NULL && i < literal.bytes; i++) {
        char c = literal.data[i];
        if (c == '\\') {
            c = ++i < literal.bytes ? literal.data[i] : 'x';
            const char *place = strchr("ntr'\\", c);
            if (c == '\0' || place == NULL) {
                *bad_out = true;
                free(text);
                return NULL;
            }
            c = "\n\t\r'\\"[place - "ntr'\\"];
        }
        text[n++] = c;
    }
    if (text != NULL) {
        text[n] = '\0';
    }
    return text;
}

/* --- what each family makes of it: false = not a form we know --- */

static bool read_chatml(const struct reading *s, struct pkvi_chat_style *style)
{
    bool thinks = SEEN(s, THOUGHT);
    if (!SEEN(s, MESSAGE) || SEEN(s, BARE_CONTENT) != thinks || SEEN(s, TURN_END) != thinks) {
        return false;
    }
    if (thinks &&
        (!has(s, "{%ifloop.index0>ns.last_query_index%}"
                 "{%ifloop.lastor(notloop.lastandreasoning_content)%}") ||
         !has(s, "{%setcontent=message.content.split('</think>')[-1].lstrip('\\n')%}") ||
         !has(s, "{%setreasoning_content=message.content.split('</think>')[0].rstrip('\\n')"
                 ".split('<think>')[-1].lstrip('\\n')%}"))) {
        return false;
    }
    if (SEEN(s, DEFAULT) && !has(s, "{%ifloop.firstandmessages[0].role!='system'%}{{") &&
        !has(s, "{%ifmessages[0].role=='system'%}{{")) {
        return false;
    }
    style->thinks = thinks;
    style->start = SEEN(s, BOS) ? "\001" : "";
    return true;
}

static bool read_llama2(const struct reading *s, struct pkvi_chat_style *style)
{
    if (SEEN(s, USER) == SEEN(s, USER_NO_BOS) || !SEEN(s, ASSISTANT) ||
        !has(s, "{%setcontent='<<SYS>>\\n'+system_message+'\\n<</SYS>>\\n\\n'+message.content%}")) {
        return false;
    }
    if (SEEN(s, USER_NO_BOS)) {
        style->before[PKVI_ROLE_USER] = "[INST] ";
    }
    style->start = SEEN(s, BOS) ? "\001" : "";
    if (has(s, "{%eliftrue==trueandnot'<<SYS>>'inmessages[0].content%}")) {
        style->default_unless = "<<SYS>>";
    }
    return has(s, "system_message='") == (style->default_unless != NULL);
}

static bool read_llama3(const struct reading *s, struct pkvi_chat_style *style)
{
    if (SEEN(s, BARE_CONTENT)) { // Llama 3
        return !SEEN(s, MESSAGE) && !SEEN(s, SYSTEM) && !SEEN(s, BOS) &&
               has(s, "{%setcontent='<|start_header_id|>'+message.role+'<|end_header_id|>\\n\\n'"
                      "+message.content|trim+'<|eot_id|>'%}{%ifloop.index0==0%}"
                      "{%setcontent=bos_token+content%}{%endif%}{{content}}");
    }
    style->start = SEEN(s, BOS) ? "\001" : "";
    if (SEEN(s, SYSTEM)) { // Llama 3.1 and later: a system turn with dates, always
        style->before_first_system = "<|start_header_id|>system<|end_header_id|>\n\n"
                                     "Cutting Knowledge Date: December 2023\nToday Date: \003\n\n";
        if (!has(s, "{%setsystem_message=messages[0].content|trim%}") ||
            !has(s, "{%setsystem_message=''%}") || !has(s, "{%setdate_string='")) {
            return false;
        }
    }
    return SEEN(s, MESSAGE);
}

static bool read_gemma(const struct reading *s, struct pkvi_chat_style *style)
{
    style->start = SEEN(s, BOS) ? "\001" : "";
    if (SEEN(s, MESSAGE) == SEEN(s, SYSTEM_USER) || !style->alternates ||
        !has(s, "{%setrole='model'%}")) {
        return false;
    }
    if (SEEN(s, MESSAGE)) { // Gemma 1 and 2
        style->system = PKVI_SYSTEM_NONE;
        return true;
    }
    return has(s, "{%setfirst_user_prefix=messages[0].content+'\\n\\n'%}");
}

static bool read_mistral(const struct reading *s, struct pkvi_chat_style *style)
{
    static const struct {
        enum output output;
        const char *before, *after;
    } users[] = {
        {USER, "[INST] ", "[/INST]"},
        {USER_SPACED, "[INST] ", " [/INST]"},
        {USER_WIDE, " [INST] ", " [/INST]"},
        {USER_TIGHT, "[INST]", "[/INST]"},
    };
    int forms = 0, answers = SEEN(s, ASSISTANT) + SEEN(s, ASSISTANT_TRIM) +
                             SEEN(s, ASSISTANT_TIGHT) + SEEN(s, ASSISTANT_SPACE);
    for (size_t i = 0; i < sizeof users / sizeof users[0]; i++) {
        if (SEEN(s, users[i].output)) {
            forms++;
            style->before[PKVI_ROLE_USER] = users[i].before;
            style->after[PKVI_ROLE_USER] = users[i].after;
        }
    }
    bool tight = SEEN(s, ASSISTANT_TIGHT) || SEEN(s, ASSISTANT_SPACE);
    style->before[PKVI_ROLE_ASSISTANT] = tight ? "" : " ";
    style->after[PKVI_ROLE_ASSISTANT] = SEEN(s, ASSISTANT_SPACE) ? "\002 " : "\002";
    style->trim[PKVI_ROLE_ASSISTANT] = SEEN(s, ASSISTANT_TRIM);
    if (SEEN(s, SYSTEM)) {
        style->system = PKVI_SYSTEM_TURN;
        style->later_system = true;
        return forms == 1 && answers == 1 && SEEN(s, BOS) && !SEEN(s, SYSTEM_USER);
    }
    bool first = has(s, "{%ifloop.firstandsystem_messageisdefined%}");
    bool last = has(s, "{%ifloop.lastandsystem_messageisdefined%}");
    style->system = !SEEN(s, SYSTEM_USER) ? PKVI_SYSTEM_NONE
                    : first               ? PKVI_SYSTEM_FIRST_USER
                                          : PKVI_SYSTEM_LAST_USER;
    return forms == 1 && answers == 1 && SEEN(s, BOS) && style->alternates &&
           (!SEEN(s, SYSTEM_USER) || first != last);
}

static bool read_phi3(const struct reading *s, struct pkvi_chat_style *style)
{
    style->start = SEEN(s, BOS) ? "\001" : "";
    style->no_generation = SEEN(s, NO_GENERATION) ? "\002" : NULL;
    style->system = SEEN(s, SYSTEM) ? PKVI_SYSTEM_TURN : PKVI_SYSTEM_NONE;
    style->skips_empty_system = has(s, "message.role=='system'andmessage.content");
    if (SEEN(s, USER_OPEN)) { // the first form
        style->after[PKVI_ROLE_USER] = "<|end|>\n<|assistant|>\n";
        style->before[PKVI_ROLE_ASSISTANT] = style->generation = "";
        return SEEN(s, ASSISTANT_TIGHT) && !SEEN(s, USER) && !SEEN(s, ASSISTANT) &&
               !SEEN(s, GENERATION);
    }
    return SEEN(s, USER) && SEEN(s, ASSISTANT) && SEEN(s, GENERATION) && !SEEN(s, ASSISTANT_TIGHT);
}

static bool read_zephyr(const struct reading *s, struct pkvi_chat_style *style)
{
    style->start = SEEN(s, BOS) ? "\001" : "";
    style->system = SEEN(s, SYSTEM) ? PKVI_SYSTEM_TURN : PKVI_SYSTEM_NONE;
    return SEEN(s, USER) && SEEN(s, ASSISTANT) && SEEN(s, GENERATION);
}

/* --- texts of the template that the style keeps --- */

/* A copy of the literal that begins behind `before`; *bad_out: an escape we do not have. */
static enum pkv_status keep_literal(const struct reading *s, const char *before, char **text_out,
                                    bool *bad_out)
{
    const char *from = strstr(s->normal, before) + strlen(before), *to = from;
    while (*to != '\'') { // the normal form closes its literals
        to += *to == '\\' ? 2 : 1;
    }
    *text_out = literal_text((struct span){from, (size_t)(to - from)}, bad_out);
    return *text_out != NULL || *bad_out ? PKV_OK : PKV_ERR_NO_MEMORY;
}

static enum pkv_status keep_texts(const struct reading *s, struct pkvi_chat_style *style,
                                  bool *bad_out)
{
    if (SEEN(s, DEFAULT)) {
        style->default_system = literal_text(s->kept[DEFAULT], bad_out);
        PKV_TRY(style->default_system || *bad_out ? PKV_OK : PKV_ERR_NO_MEMORY);
    } else if (style->default_unless) {
        PKV_TRY(keep_literal(s, "system_message='", &style->default_system, bad_out));
    } else if (style->before_first_system) {
        style->default_system = strdup("");
        PKV_TRY(style->default_system ? PKV_OK : PKV_ERR_NO_MEMORY);
        PKV_TRY(keep_literal(s, "{%setdate_string='", &style->date, bad_out));
    }
    if (s->kept[GENERATION].bytes > 0 && !*bad_out) {
        char *tail = literal_text(s->kept[GENERATION], bad_out);
        if (*bad_out) {
            return PKV_OK;
        }
        PKV_TRY(tail ? PKV_OK : PKV_ERR_NO_MEMORY);
        int bytes = asprintf(&style->own_generation, "%s%s", style->generation, tail);
        free(tail);
        if (bytes < 0) {
            style->own_generation = NULL;
            return PKV_ERR_NO_MEMORY;
        }
        style->generation = style->own_generation;
    }
    return PKV_OK;
}

/* --- the whole --- */

static enum family find_family(const struct reading *s)
{
    if (has(s, "<|im_start|>")) {
        return CHATML;
    }
    if (has(s, "<|start_header_id|>")) {
        return LLAMA3;
    }
    if (has(s, "<start_of_turn>")) {
        return GEMMA;
    }
    if (has(s, "[INST]")) {
        return has(s, "<<SYS>>") ? LLAMA2 : MISTRAL;
    }
    if (has(s, "<|user|>") && has(s, "<|assistant|>")) {
        return has(s, "<|end|>") ? PHI3 : ZEPHYR;
    }
    return FAMILY_COUNT;
}

static enum pkv_status read_normal(struct reading *s, struct pkvi_chat_style *style)
{
    static bool (*const read[FAMILY_COUNT])(const struct reading *, struct pkvi_chat_style *) = {
        read_chatml, read_llama2, read_llama3, read_gemma, read_mistral, read_phi3, read_zephyr};
    s->family = find_family(s);
    if (s->family == FAMILY_COUNT) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED, "the file's chat template is of no known family; name "
                                             "one with --chat-template " FAMILIES);
    }
    *style = usual[s->family];
    style->alternates = has(s, "(message.role=='user')!=(");
    bool bad = !note_outputs(s) || !read[s->family](s, style);
    if (SEEN(s, GENERATION) && !has(s, "add_generation_prompt")) {
        style->no_generation = style->generation; // printed always
    }
    enum pkv_status status = bad ? PKV_OK : keep_texts(s, style, &bad);
    if (status != PKV_OK) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "chat template: no memory");
    }
    if (bad) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "the file's chat template looks like %s, but is not a form of it that we "
                        "know; --chat-template %s uses the usual form",
                        style->family, style->family);
    }
    return PKV_OK;
}

enum pkv_status pkvi_chat_style_read(const char *text, size_t bytes,
                                     struct pkvi_chat_style *style_out)
{
    if (!text) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "the file has no chat template; name one with --chat-template " FAMILIES);
    }
    if (bytes > PKVI_CHAT_MOST_BYTES) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "the file's chat template has %zu bytes, at most %zu are read; name a "
                        "family with --chat-template " FAMILIES,
                        bytes, PKVI_CHAT_MOST_BYTES);
    }
    char *normal = pkvi_chat_normal(text, bytes);
    if (!normal) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "chat template: no memory for %zu bytes", bytes);
    }
    struct reading s = {.normal = normal};
    struct pkvi_chat_style style = {0};
    enum pkv_status status = read_normal(&s, &style);
    free(normal);
    if (status != PKV_OK) {
        pkvi_chat_style_fini(&style);
        return status;
    }
    *style_out = style;
    return PKV_OK;
}

enum pkv_status pkvi_chat_style_of(const char *family, struct pkvi_chat_style *style_out)
{
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        if (strcmp(family, usual[i].family) == 0) {
            *style_out = usual[i];
            return PKV_OK;
        }
    }
    return PKV_FAIL(PKV_ERR_INVALID, "chat template family '%.64s'; allowed: " FAMILIES, family);
}

void pkvi_chat_style_fini(struct pkvi_chat_style *style)
{
    free(style->default_system);
    free(style->date);
    free(style->own_generation);
    *style = (struct pkvi_chat_style){0};
}
