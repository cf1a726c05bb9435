/* record.c: owns the JSON lines: what every record holds, and how numbers are printed. */
#include "runtime/cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "pivotkv/version.h"

/* First value of a key in /proc/cpuinfo, "" if there is none. */
static void cpu_name(char *name, size_t bytes)
{
    name[0] = '\0';
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file == NULL) {
        return;
    }
    char line[256];
    while (name[0] == '\0' && fgets(line, sizeof line, file) != NULL) {
        const char *colon = strchr(line, ':');
        if (colon != NULL && strncmp(line, "model name", 10) == 0) {
            snprintf(name, bytes, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        }
    }
    fclose(file);
}

static json_t *machine(void)
{
    char name[128];
    cpu_name(name, sizeof name);
    struct utsname system;
    memset(&system, 0, sizeof system);
    uname(&system);
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    json_int_t memory_bytes = pages > 0 && page_bytes > 0 ? (json_int_t)pages * page_bytes : 0;
    return json_pack("{s:s, s:s, s:I, s:I, s:s}", "cpu", name, "arch", system.machine, "cpus",
                     (json_int_t)cpus, "memory_bytes", memory_bytes, "kernel", system.release);
}

void pkvi_record_begin(struct pkvi_record *record, const char *name)
{
    char schema[64];
    snprintf(schema, sizeof schema, "pivotkv/%s/1", name);
    *record = (struct pkvi_record){.root = json_object()};
    pkvi_record_text(record, "schema", schema);
    pkvi_record_text(record, "build", pkv_build());
    pkvi_record_text(record, "commit", pkv_commit());
    pkvi_record_set(record, "machine", machine());
}

void pkvi_record_set(struct pkvi_record *record, const char *key, json_t *value)
{
    record->failed |= json_object_set_new(record->root, key, value) != 0;
}

void pkvi_record_text(struct pkvi_record *record, const char *key, const char *text)
{
    json_t *value = json_string(text);
    if (value == NULL) {
        char plain[512]; /* not UTF-8: a path may hold anything */
        snprintf(plain, sizeof plain, "%s", text);
        for (char *at = plain; *at != '\0'; at++) {
            *at = (unsigned char)*at < 0x80 ? *at : '?';
        }
        value = json_string(plain);
    }
    pkvi_record_set(record, key, value);
}

void pkvi_record_int(struct pkvi_record *record, const char *key, uint64_t value)
{
    pkvi_record_set(record, key, json_integer((json_int_t)value));
}

json_t *pkvi_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

void pkvi_record_real(struct pkvi_record *record, const char *key, double value)
{
    pkvi_record_set(record, key, pkvi_json_real(value));
}

void pkvi_record_ids(struct pkvi_record *record, const char *key, const int32_t *ids, size_t count)
{
    json_t *list = json_array();
    for (size_t i = 0; i < count && !record->failed; i++) {
        record->failed |= json_array_append_new(list, json_integer(ids[i])) != 0;
    }
    pkvi_record_set(record, key, list);
}

int pkvi_record_end(struct pkvi_record *record, int code)
{
    /* 9 digits tell any two float32 apart. */
    char *text =
        record->failed ? NULL : json_dumps(record->root, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(record->root);
    *record = (struct pkvi_record){0};
    if (text == NULL) {
        return pkvi_say_failure("out of memory for the JSON record");
    }
    pkvi_out_write(text, strlen(text));
    pkvi_out_write("\n", 1);
    free(text);
    pkvi_out_flush();
    return code;
}

int pkvi_out_library_text(const char *name, bool json, char *text)
{
    int code = PKV_EXIT_OK;
    if (json) {
        json_t *members = json_loads(text, 0, NULL);
        struct pkvi_record record;
        pkvi_record_begin(&record, name);
        record.failed |= json_object_update_missing(record.root, members) != 0;
        json_decref(members);
        code = pkvi_record_end(&record, PKV_EXIT_OK);
    } else {
        pkvi_out_write(text, strlen(text));
    }
    free(text);
    return code;
}
