/* host.c: reads /proc and /sys. Formats: proc(5), Documentation/admin-guide/mm/transhuge.rst. */
#include "runtime/base/host.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/base/cgroup.h"

#define CAP_IPC_LOCK_BIT 14 /* linux/capability.h */

static FILE *open_below(const char *root, const char *path)
{
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s%s", root, path);
    return fopen(name, "re");
}

static bool has_word(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length) {
        bool begins = at == list || at[-1] == ' ' || at[-1] == '\t';
        bool ends = at[length] == ' ' || at[length] == '\n' || at[length] == '\0';
        if (begins && ends) {
            return true;
        }
    }
    return false;
}

/* "key : value" lines of /proc/cpuinfo; the first CPU stands for all. */
static void read_cpu(const char *root, struct pkvi_host *host)
{
    static const char *const wanted[] = {
        "avx",      "avx2",        "fma",         "f16c",     "avx512f",  "avx512bw",
        "avx512vl", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8", "asimd",
        "asimddp",  "asimdhp",     "i8mm",        "bf16",     "sve"};
    char line[8192];
    FILE *file = open_below(root, "/proc/cpuinfo");
    if (!file) {
        return;
    }
    while (fgets(line, sizeof line, file) && line[0] != '\n') {
        char *value = strchr(line, ':');
        if (!value) {
            continue;
        }
        value += value[1] == ' ' ? 2 : 1;
        if (strncmp(line, "model name", 10) == 0) {
            value[strcspn(value, "\n")] = '\0';
            snprintf(host->cpu_model, sizeof host->cpu_model, "%s", value);
        } else if (strncmp(line, "flags", 5) == 0 || strncmp(line, "Features", 8) == 0) {
            size_t at = 0;
            for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
                if (has_word(value, wanted[i])) {
                    at += (size_t)snprintf(host->cpu_features + at, sizeof host->cpu_features - at,
                                           "%s%s", at ? " " : "", wanted[i]);
                }
            }
        }
    }
    fclose(file);
}

/* The word in brackets of "always [madvise] never". */
static void read_huge_pages(const char *root, struct pkvi_host *host)
{
    char line[128];
    FILE *file = open_below(root, "/sys/kernel/mm/transparent_hugepage/enabled");
    if (!file) {
        return;
    }
    char *begin = fgets(line, sizeof line, file) ? strchr(line, '[') : NULL;
    if (begin) {
        snprintf(host->huge_pages, sizeof host->huge_pages, "%.*s", (int)strcspn(begin + 1, "]\n"),
                 begin + 1);
    }
    fclose(file);
}

static void read_memlock(const char *root, struct pkvi_host *host)
{
    struct rlimit limit;
    char line[256];
    unsigned long long bits = 0;
    host->memlock_bytes = 0;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0) {
        host->memlock_bytes = limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
    }
    FILE *file = open_below(root, "/proc/self/status");
    if (!file) {
        return;
    }
    while (fgets(line, sizeof line, file)) {
        if (sscanf(line, "CapEff: %llx", &bits) == 1) {
            host->may_lock = (bits >> CAP_IPC_LOCK_BIT) & 1;
        }
    }
    fclose(file);
}

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar ..." */
static void read_driver(const char *root, struct pkvi_host *host)
{
    char line[512], name[PATH_MAX];
    FILE *file = open_below(root, "/proc/driver/nvidia/version");
    if (!file) {
        return;
    }
    char *found = fgets(line, sizeof line, file) ? strstr(line, "Module") : NULL;
    fclose(file);
    if (!found || sscanf(found, "Module%*[^0-9]%95[0-9.]", host->driver) != 1) {
        snprintf(host->driver, sizeof host->driver, "unknown version");
    }
    snprintf(name, sizeof name, "%s/proc/driver/nvidia/gpus", root);
    DIR *folder = opendir(name);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        host->gpus += entry->d_name[0] != '.';
    }
    if (folder) {
        closedir(folder);
    }
    snprintf(name, sizeof name, "%s/dev/nvidiactl", root);
    host->gpu_node = access(name, F_OK) == 0;
}

void pkvi_host_query(const char *root, struct pkvi_host *host_out)
{
    struct pkvi_cgroup cgroup;
    *host_out = (struct pkvi_host){0};
    pkvi_cgroup_query(root, PKVI_CGROUP_CPU, &cgroup);
    host_out->cpu_quota = cgroup.cpus;
    pkvi_limits_memory(root, &host_out->memory);
    read_cpu(root, host_out);
    read_huge_pages(root, host_out);
    read_memlock(root, host_out);
    read_driver(root, host_out);
}
