/*
 * cgroup.c: finds the groups of this process in /proc/self/cgroup, their folders in
 * /proc/self/mountinfo, and reads the limits from the process's group up to the top of the mount:
 * every parent's limit holds too. In a container the named path may not exist under the mount
 * (v1 without a cgroup namespace); the walk upwards then still meets the mount's own files.
 * Formats: proc(5), cgroups(7), Documentation/admin-guide/cgroup-v2.rst of Linux.
 */
#include "runtime/base/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct group {
    char mount[PATH_MAX]; /* folder of the hierarchy, with root before it */
    char path[PATH_MAX];  /* of the process below it, "" or "/a/b" */
};

/* Is `word` one of the words of a comma-separated list? */
static bool list_has(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; at; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

/* Path of the process for a controller ("" = the v2 hierarchy); false: not listed. */
static bool find_path(const char *root, const char *controller, char path_out[PATH_MAX])
{
    char name[PATH_MAX], line[PATH_MAX + 256];
    bool found = false;
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "re");
    if (!file) {
        return false;
    }
    while (!found && fgets(line, sizeof line, file)) { /* id:controllers:path */
        line[strcspn(line, "\n")] = '\0';
        char *list = strchr(line, ':');
        char *path = list ? strchr(list + 1, ':') : NULL;
        if (!path) {
            continue;
        }
        *path++ = '\0';
        list++;
        if (controller[0] == '\0' ? list[0] == '\0' : list_has(list, controller)) {
            snprintf(path_out, PATH_MAX, "%s", strcmp(path, "/") == 0 ? "" : path);
            found = true;
        }
    }
    fclose(file);
    return found;
}

/* Fill in the mount of a hierarchy; group->path loses what lies above the mount's root. */
static bool find_mount(const char *root, const char *controller, struct group *group)
{
    char name[PATH_MAX], line[3 * PATH_MAX];
    bool found = false;
    snprintf(name, sizeof name, "%s/proc/self/mountinfo", root);
    FILE *file = fopen(name, "re");
    if (!file) {
        return false;
    }
    while (!found && fgets(line, sizeof line, file)) {
        char top[1024], mount[1024], type[64], options[1024];
        const char *tail = strstr(line, " - ");
        if (!tail || sscanf(line, "%*s %*s %*s %1023s %1023s", top, mount) != 2 ||
            sscanf(tail, " - %63s %*s %1023s", type, options) != 2) {
            continue;
        }
        bool v2 = controller[0] == '\0';
        if (strcmp(type, v2 ? "cgroup2" : "cgroup") != 0 ||
            (!v2 && !list_has(options, controller))) {
            continue;
        }
        size_t length = strcmp(top, "/") == 0 ? 0 : strlen(top);
        if (length > 0 && strncmp(group->path, top, length) == 0) {
            memmove(group->path, group->path + length, strlen(group->path + length) + 1);
        }
        snprintf(group->mount, sizeof group->mount, "%s%s", root, mount);
        found = true;
    }
    fclose(file);
    return found;
}

/* Two words of a file in the group's folder; false: no such file. */
static bool read_words(const struct group *group, const char *file_name, char first[64],
                       char second[64])
{
    char name[2 * PATH_MAX + 64];
    first[0] = second[0] = '\0';
    snprintf(name, sizeof name, "%s%s/%s", group->mount, group->path, file_name);
    FILE *file = fopen(name, "re");
    if (!file) {
        return false;
    }
    int words = fscanf(file, "%63s %63s", first, second);
    fclose(file);
    return words >= 1;
}

static void take_quota(double quota, double period, struct pkvi_cgroup *out)
{
    if (quota > 0 && period > 0 && (out->cpus == 0 || quota / period < out->cpus)) {
        out->cpus = quota / period;
    }
}

/* Page cache of the group: it can go, so it does not count as used. */
static uint64_t read_cache(const struct group *group, bool v2)
{
    char name[2 * PATH_MAX + 64], key[64];
    unsigned long long value = 0, bytes = 0;
    snprintf(name, sizeof name, "%s%s/memory.stat", group->mount, group->path);
    FILE *file = fopen(name, "re");
    if (!file) {
        return 0;
    }
    while (fscanf(file, "%63s %llu", key, &value) == 2) {
        const char *what = v2 ? key : strncmp(key, "total_", 6) == 0 ? key + 6 : "";
        if (strcmp(what, "active_file") == 0 || strcmp(what, "inactive_file") == 0) {
            bytes += value;
        }
    }
    fclose(file);
    return bytes;
}

static void read_cpu_limit(const struct group *group, bool v2, struct pkvi_cgroup *out)
{
    char a[64], b[64], c[64], d[64];
    if (v2 && read_words(group, "cpu.max", a, b)) {
        take_quota(strtod(a, NULL), strtod(b, NULL), out);
    }
    if (!v2 && read_words(group, "cpu.cfs_quota_us", a, b) &&
        read_words(group, "cpu.cfs_period_us", c, d)) {
        take_quota(strtod(a, NULL), strtod(c, NULL), out);
    }
}

static void read_memory_limit(const struct group *group, bool v2, struct pkvi_cgroup *out)
{
    char limit[64], used[64], rest[64];
    if (!read_words(group, v2 ? "memory.max" : "memory.limit_in_bytes", limit, rest)) {
        return;
    }
    /* v1 says "none" by a number near 2^63, v2 by the word "max" */
    unsigned long long bytes = strtoull(limit, NULL, 10);
    if (bytes == 0 || bytes >= (1ull << 60) ||
        (out->memory_bytes > 0 && bytes >= out->memory_bytes) ||
        !read_words(group, v2 ? "memory.current" : "memory.usage_in_bytes", used, rest)) {
        return;
    }
    unsigned long long used_bytes = strtoull(used, NULL, 10), cache_bytes = read_cache(group, v2);
    out->memory_bytes = bytes;
    out->memory_used_bytes = used_bytes > cache_bytes ? used_bytes - cache_bytes : 0;
}

static void walk(const char *root, const char *controller, uint32_t want, struct pkvi_cgroup *out)
{
    struct group group;
    if (!find_path(root, controller, group.path) || !find_mount(root, controller, &group)) {
        return;
    }
    for (;;) {
        if (want & PKVI_CGROUP_CPU) {
            read_cpu_limit(&group, controller[0] == '\0', out);
        }
        if (want & PKVI_CGROUP_MEMORY) {
            read_memory_limit(&group, controller[0] == '\0', out);
        }
        char *slash = strrchr(group.path, '/');
        if (!slash) {
            break;
        }
        *slash = '\0';
    }
}

void pkvi_cgroup_query(const char *root, uint32_t want, struct pkvi_cgroup *cgroup_out)
{
    *cgroup_out = (struct pkvi_cgroup){0};
    walk(root, "", want, cgroup_out);
    if (want & PKVI_CGROUP_CPU) {
        walk(root, "cpu", PKVI_CGROUP_CPU, cgroup_out);
    }
    if (want & PKVI_CGROUP_MEMORY) {
        walk(root, "memory", PKVI_CGROUP_MEMORY, cgroup_out);
    }
}
