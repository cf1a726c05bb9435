/*
 * profile.c: owns the profile file: its members, their limits, and writing it whole or not at all.
 * Refuses to know how anything is measured or what it is used for.
 */
#include "runtime/device/profile.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pivotkv/version.h"
#include "runtime/base/check.h"
#include "runtime/base/file.h"

#define SCHEMA "pivotkv/profile/2"
#define SCHEMA_1 "pivotkv/profile/1" /* without kernels, wait_us and beside */
#define LEAST_SPEED 1e-6             /* less is a machine that never ends */
#define MOST_GBPS 1e6
#define MOST_GOPS 1e9
#define MOST_US 1e9
#define MOST_THREADS 65536.0
#define MOST_INTENSITY 1e9
#define MOST_PIECE ((json_int_t)1 << 50)

static const char *const direction_names[] = {"host_to_device", "device_to_host", "both", NULL};

const char *const pkvi_profile_kinds[PKVI_PROFILE_KINDS + 1] = {
    "linear_q4", "linear_q8", "linear_f32", "attend", "rows", NULL};

/* ---- reading; `where` is the path of an object in the file, "" for the outermost ---- */

struct place {
    const char *file;
    char where[64];
};

static enum pkv_status fail_at(const struct place *place, const char *key, const char *expected)
{
    return PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: %s%s%.60s: expected %s", place->file, place->where,
                    place->where[0] ? "." : "", key, expected);
}

static struct place inside(const struct place *place, const char *key)
{
    struct place inner = {.file = place->file};
    snprintf(inner.where, sizeof inner.where, "%.30s%s%.30s", place->where,
             place->where[0] ? "." : "", key);
    return inner;
}

static enum pkv_status check_members(const json_t *object, const struct place *place,
                                     const char *const *names)
{
    json_t *members = (json_t *)(uintptr_t)object; /* the iterator takes no const */
    const char *name;
    json_t *value;
    json_object_foreach(members, name, value)
    {
        size_t i = 0;
        while (names[i] && strcmp(names[i], name) != 0) {
            i++;
        }
        if (!names[i]) {
            return fail_at(place, name, "no such member");
        }
    }
    return PKV_OK;
}

/* The member `key`, an object that has no members but `names`; `inner` is its place. */
static enum pkv_status get_object(const json_t *object, const struct place *place, const char *key,
                                  const char *const *names, struct place *inner,
                                  json_t **object_out)
{
    *inner = inside(place, key);
    *object_out = json_object_get(object, key);
    if (!json_is_object(*object_out)) {
        return fail_at(place, key, "an object");
    }
    return check_members(*object_out, inner, names);
}

static enum pkv_status get_number(const json_t *object, const struct place *place, const char *key,
                                  double most, bool zero, double *value_out)
{
    char expected[64];
    const json_t *value = json_object_get(object, key);
    double number = json_number_value(value);
    snprintf(expected, sizeof expected,
             zero ? "a number from 0 to %g" : "a number of at least 1e-06, at most %g", most);
    if (!json_is_number(value) || !isfinite(number) || number < (zero ? 0 : LEAST_SPEED) ||
        number > most) {
        return fail_at(place, key, expected);
    }
    *value_out = number;
    return PKV_OK;
}

static enum pkv_status get_text(const json_t *object, const struct place *place, const char *key,
                                char *text, size_t bytes)
{
    const char *value = json_string_value(json_object_get(object, key));
    if (!value || strlen(value) >= bytes) {
        char expected[48];
        snprintf(expected, sizeof expected, "a text of at most %zu bytes", bytes - 1);
        return fail_at(place, key, expected);
    }
    memcpy(text, value, strlen(value) + 1);
    return PKV_OK;
}

static enum pkv_status get_flag(const json_t *object, const struct place *place, const char *key,
                                bool *flag_out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_boolean(value)) {
        return fail_at(place, key, "true or false");
    }
    *flag_out = json_is_true(value);
    return PKV_OK;
}

static enum pkv_status get_curve(const json_t *object, const struct place *place, const char *key,
                                 struct pkvi_profile_curve *curve)
{
    const json_t *list = json_object_get(object, key);
    size_t count = json_array_size(list);
    if (!json_is_array(list) || count == 0 || count > PKVI_PROFILE_POINTS) {
        return fail_at(place, key, "an array of 1 to 64 points");
    }
    for (size_t i = 0; i < count; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s[%zu]", key, i);
        const json_t *point = json_array_get(list, i);
        const json_t *bytes = json_object_get(point, "piece_bytes");
        struct place at = inside(place, name);
        json_int_t before = i > 0 ? (json_int_t)curve->point[i - 1].piece_bytes : 0;
        if (!json_is_object(point) || json_object_size(point) != 2) {
            return fail_at(place, name, "an object of piece_bytes and gbps");
        }
        if (!json_is_integer(bytes) || json_integer_value(bytes) <= before ||
            json_integer_value(bytes) > MOST_PIECE) {
            return fail_at(&at, "piece_bytes", "a whole number above the one before, at most 2^50");
        }
        curve->point[i].piece_bytes = (uint64_t)json_integer_value(bytes);
        PKV_TRY(get_number(point, &at, "gbps", MOST_GBPS, false, &curve->point[i].gbps));
    }
    curve->count = (uint32_t)count;
    return PKV_OK;
}

static enum pkv_status get_local(const json_t *root, const struct place *place,
                                 struct pkvi_profile *p)
{
    static const char *const names[] = {"read_gbps", "int8_gops", "f32_gops", NULL};
    json_t *local;
    struct place at;
    PKV_TRY(get_object(root, place, "local", names, &at, &local));
    PKV_TRY(get_number(local, &at, "read_gbps", MOST_GBPS, false, &p->read_gbps));
    PKV_TRY(get_number(local, &at, "int8_gops", MOST_GOPS, false, &p->int8_gops));
    return get_number(local, &at, "f32_gops", MOST_GOPS, false, &p->f32_gops);
}

static enum pkv_status get_kernel(const json_t *kernels, const struct place *place,
                                  const char *kind, struct pkvi_profile_kernel *kernel)
{
    static const char *const names[] = {"launch_us", "points", NULL};
    json_t *object;
    struct place at;
    PKV_TRY(get_object(kernels, place, kind, names, &at, &object));
    PKV_TRY(get_number(object, &at, "launch_us", MOST_US, true, &kernel->launch_us));
    const json_t *list = json_object_get(object, "points");
    const size_t count = json_array_size(list);
    if (!json_is_array(list) || count == 0 || count > PKVI_PROFILE_KERNEL_POINTS) {
        return fail_at(&at, "points", "an array of 1 to 8 points");
    }
    for (size_t i = 0; i < count; i++) {
        char name[24];
        snprintf(name, sizeof name, "points[%zu]", i);
        const json_t *point = json_array_get(list, i);
        const struct place inner = inside(&at, name);
        if (!json_is_object(point) || json_object_size(point) != 2) {
            return fail_at(&at, name, "an object of flops_per_byte and gbps");
        }
        PKV_TRY(get_number(point, &inner, "flops_per_byte", MOST_INTENSITY, true,
                           &kernel->point[i].flops_per_byte));
        PKV_TRY(get_number(point, &inner, "gbps", MOST_GBPS, false, &kernel->point[i].gbps));
        if (i > 0 && kernel->point[i].flops_per_byte <= kernel->point[i - 1].flops_per_byte) {
            return fail_at(&inner, "flops_per_byte", "a number above the one before");
        }
    }
    kernel->count = (uint32_t)count;
    return PKV_OK;
}

static enum pkv_status get_kernels(const json_t *root, const struct place *place,
                                   struct pkvi_profile *p)
{
    static const char *const beside_names[] = {"kernel", "copy", NULL};
    json_t *kernels, *beside;
    struct place at;
    PKV_TRY(get_object(root, place, "kernels", pkvi_profile_kinds, &at, &kernels));
    for (uint32_t kind = 0; kind < PKVI_PROFILE_KINDS; kind++) {
        PKV_TRY(get_kernel(kernels, &at, pkvi_profile_kinds[kind], &p->kernel[kind]));
    }
    p->has_kernels = true;
    if (!json_object_get(root, "beside")) {
        return PKV_OK;
    }
    PKV_TRY(get_object(root, place, "beside", beside_names, &at, &beside));
    PKV_TRY(get_number(beside, &at, "kernel", 1, false, &p->beside_kernel));
    return get_number(beside, &at, "copy", 1, false, &p->beside_copy);
}

static enum pkv_status get_calls(const json_t *root, const struct place *place,
                                 struct pkvi_profile *p)
{
    static const char *const launch_names[] = {"cost_us", "call_us", "latency_us", NULL};
    static const char *const copy_names[] = {"call_us", "host_to_device_latency_us",
                                             "device_to_host_latency_us", "wait_us", NULL};
    json_t *launch, *copy;
    struct place at;
    PKV_TRY(get_object(root, place, "launch", launch_names, &at, &launch));
    PKV_TRY(get_number(launch, &at, "cost_us", MOST_US, true, &p->launch_us));
    PKV_TRY(get_number(launch, &at, "call_us", MOST_US, true, &p->launch_call_us));
    PKV_TRY(get_number(launch, &at, "latency_us", MOST_US, true, &p->launch_latency_us));
    PKV_TRY(get_object(root, place, "copy", copy_names, &at, &copy));
    PKV_TRY(get_number(copy, &at, "call_us", MOST_US, true, &p->copy_call_us));
    PKV_TRY(get_number(copy, &at, copy_names[1], MOST_US, true, &p->copy_latency_us[0]));
    PKV_TRY(get_number(copy, &at, copy_names[2], MOST_US, true, &p->copy_latency_us[1]));
    return p->has_kernels ? get_number(copy, &at, "wait_us", MOST_US, true, &p->wait_us) : PKV_OK;
}

static enum pkv_status get_link(const json_t *root, const struct place *place,
                                struct pkvi_profile *p)
{
    static const char *const patterns[] = {"contiguous", "gather", NULL};
    json_t *link, *direction;
    struct place at, inner;
    PKV_TRY(get_object(root, place, "link", direction_names, &at, &link));
    for (uint32_t i = 0; i < PKVI_PROFILE_DIRECTIONS; i++) {
        PKV_TRY(get_object(link, &at, direction_names[i], patterns, &inner, &direction));
        PKV_TRY(get_curve(direction, &inner, "contiguous", &p->link[i].contiguous));
        PKV_TRY(get_curve(direction, &inner, "gather", &p->link[i].gather));
    }
    return PKV_OK;
}

static enum pkv_status get_all(const json_t *root, const char *name, struct pkvi_profile *p)
{
    static const char *const names[] = {
        "schema",   "build", "commit", "note", "machine", "device",  "variant", "threads", "cached",
        "emulated", "local", "launch", "copy", "link",    "kernels", "beside",  NULL};
    const struct place place = {.file = name};
    double threads = 0;
    const char *schema = json_string_value(json_object_get(root, "schema"));
    if (!schema) {
        return fail_at(&place, "schema", "\"" SCHEMA "\"");
    }
    const bool old = strcmp(schema, SCHEMA_1) == 0;
    if (!old && strcmp(schema, SCHEMA) != 0) {
        return PKV_FAIL(PKV_ERR_UNSUPPORTED,
                        "%.200s: schema '%.60s': expected " SCHEMA " or " SCHEMA_1, name, schema);
    }
    PKV_TRY(check_members(root, &place, names));
    PKV_TRY(get_text(root, &place, "machine", p->machine, sizeof p->machine));
    PKV_TRY(get_text(root, &place, "device", p->device, sizeof p->device));
    PKV_TRY(get_text(root, &place, "variant", p->variant, sizeof p->variant));
    PKV_TRY(get_number(root, &place, "threads", MOST_THREADS, false, &threads));
    if (threads != floor(threads)) {
        return fail_at(&place, "threads", "a whole number");
    }
    p->threads = (uint32_t)threads;
    PKV_TRY(get_flag(root, &place, "cached", &p->cached));
    PKV_TRY(get_flag(root, &place, "emulated", &p->emulated));
    PKV_TRY(get_local(root, &place, p));
    PKV_TRY(old ? PKV_OK : get_kernels(root, &place, p));
    PKV_TRY(get_calls(root, &place, p));
    return get_link(root, &place, p);
}

enum pkv_status pkvi_profile_parse(const char *text, size_t bytes, const char *name,
                                   struct pkvi_profile *profile_out)
{
    json_error_t error;
    struct pkvi_profile *profile;
    if (!text || !name || !profile_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "parse a profile: NULL argument");
    }
    json_t *root = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(root)) {
        json_decref(root);
        return root ? PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: expected one JSON object", name)
                    : PKV_FAIL(PKV_ERR_CORRUPT, "%.200s: line %d: %.100s", name, error.line,
                               error.text);
    }
    enum pkv_status status = PKV_ERR_NO_MEMORY;
    profile = calloc(1, sizeof *profile);
    if (!profile) {
        PKV_FAIL(status, "no memory for a profile");
    } else if ((status = get_all(root, name, profile)) == PKV_OK) {
        *profile_out = *profile;
    }
    free(profile);
    json_decref(root);
    return status;
}

enum pkv_status pkvi_profile_read(const char *path, struct pkvi_profile *profile_out)
{
    char *text = NULL;
    uint64_t bytes = 0;
    if (!path || !profile_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "read a profile: NULL argument");
    }
    PKV_TRY(pkvi_file_load(path, PKVI_PROFILE_FILE_BYTES, &text, &bytes));
    enum pkv_status status = pkvi_profile_parse(text, bytes, path, profile_out);
    free(text);
    return status;
}

/* ---- writing; jansson gives NULL where memory is short or a number is not finite, and passes it
 * on ---- */

static json_t *curve_json(const struct pkvi_profile_curve *curve)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < curve->count; i++) {
        json_t *point =
            json_pack("{s:I, s:f}", "piece_bytes", (json_int_t)curve->point[i].piece_bytes, "gbps",
                      curve->point[i].gbps);
        if (json_array_append_new(list, point) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *link_json(const struct pkvi_profile *p)
{
    json_t *link = json_object();
    for (uint32_t i = 0; i < PKVI_PROFILE_DIRECTIONS; i++) {
        json_t *direction =
            json_pack("{s:o, s:o}", "contiguous", curve_json(&p->link[i].contiguous), "gather",
                      curve_json(&p->link[i].gather));
        if (json_object_set_new(link, direction_names[i], direction) != 0) {
            json_decref(link);
            return NULL;
        }
    }
    return link;
}

static json_t *kernels_json(const struct pkvi_profile *p)
{
    json_t *kernels = json_object();
    for (uint32_t kind = 0; kind < PKVI_PROFILE_KINDS; kind++) {
        const struct pkvi_profile_kernel *kernel = &p->kernel[kind];
        json_t *list = json_array();
        for (uint32_t i = 0; i < kernel->count; i++) {
            json_array_append_new(list, json_pack("{s:f, s:f}", "flops_per_byte",
                                                  kernel->point[i].flops_per_byte, "gbps",
                                                  kernel->point[i].gbps));
        }
        json_t *one = json_pack("{s:f, s:o}", "launch_us", kernel->launch_us, "points", list);
        if (json_array_size(json_object_get(one, "points")) != kernel->count ||
            json_object_set_new(kernels, pkvi_profile_kinds[kind], one) != 0) {
            json_decref(kernels);
            return NULL;
        }
    }
    return kernels;
}

/* What version 2 has more; false: no memory, or a number that is not finite. */
static bool add_kernels(json_t *root, const struct pkvi_profile *p)
{
    bool ok =
        json_object_set_new(json_object_get(root, "copy"), "wait_us", json_real(p->wait_us)) == 0 &&
        json_object_set_new(root, "kernels", kernels_json(p)) == 0;
    if (ok && p->beside_kernel > 0) {
        ok = json_object_set_new(
                 root, "beside",
                 json_pack("{s:f, s:f}", "kernel", p->beside_kernel, "copy", p->beside_copy)) == 0;
    }
    return ok;
}

enum pkv_status pkvi_profile_format(const struct pkvi_profile *p, char **text_out)
{
    json_t *root = json_pack(
        "{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:b, s:b, s:{s:f, s:f, s:f}, s:{s:f, s:f, s:f}, "
        "s:{s:f, s:f, s:f}, s:o}",
        "schema", p->has_kernels ? SCHEMA : SCHEMA_1, "build", pkv_build(), "commit", pkv_commit(),
        "machine", p->machine, "device", p->device, "variant", p->variant, "threads",
        (int)p->threads, "cached", p->cached, "emulated", p->emulated, "local", "read_gbps",
        p->read_gbps, "int8_gops", p->int8_gops, "f32_gops", p->f32_gops, "launch", "cost_us",
        p->launch_us, "call_us", p->launch_call_us, "latency_us", p->launch_latency_us, "copy",
        "call_us", p->copy_call_us, "host_to_device_latency_us", p->copy_latency_us[0],
        "device_to_host_latency_us", p->copy_latency_us[1], "link", link_json(p));
    char *text = root && (!p->has_kernels || add_kernels(root, p))
                     ? json_dumps(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9))
                     : NULL;
    json_decref(root);
    if (!text) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY,
                        "profile: no memory, or a number that is not finite, or text that is not "
                        "UTF-8");
    }
    *text_out = text;
    return PKV_OK;
}

enum pkv_status pkvi_profile_probe(const char *path)
{
    struct pkvi_new_file file;
    PKV_TRY(pkvi_new_file_open(path, 0666, &file));
    pkvi_new_file_discard(&file);
    return PKV_OK;
}

static enum pkv_status replace_file(const char *path, const char *text)
{
    struct pkvi_new_file file;
    PKV_TRY(pkvi_new_file_open(path, 0666, &file));
    pkvi_new_file_write(&file, text, strlen(text));
    return pkvi_new_file_commit(&file);
}

enum pkv_status pkvi_profile_write(const char *path, const struct pkvi_profile *profile)
{
    char *text = NULL;
    struct pkvi_profile *again = malloc(sizeof *again);
    if (!again) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for a profile");
    }
    enum pkv_status status = pkvi_profile_format(profile, &text);
    if (status == PKV_OK) {
        status = pkvi_profile_parse(text, strlen(text), path, again);
        if (status == PKV_OK) {
            status = replace_file(path, text);
        }
        free(text);
    }
    free(again);
    return status;
}
