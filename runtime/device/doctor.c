/*
 * doctor.c: looks at the machine, judges what matters for offloading, and names the command that
 * changes it. One list of findings makes the text and the JSON.
 */
#include "runtime/device/doctor.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/kernels.h"
#include "runtime/base/check.h"
#include "runtime/base/host.h"
#include "runtime/base/thread.h"
#include "runtime/base/topo.h"

#define GIB ((double)((uint64_t)1 << 30))
#define MOST_FINDINGS 16u
#ifdef PKV_HAVE_CUDA
#define HAS_CUDA true
#else
#define HAS_CUDA false
#endif

/* "ok": nothing to do. "note": good to know. "change": costs speed or will fail. */
enum state { STATE_OK, STATE_NOTE, STATE_CHANGE };
static const char *const state_names[] = {"ok", "note", "change"};

struct finding {
    const char *name;
    enum state state;
    char text[256];
    char fix[256]; /* "" = none */
};

struct report {
    struct pkvi_host host;
    struct pkvi_topo *topo;
    uint32_t threads;
    enum pkv_cpu best;
    bool has_cuda;
    struct finding findings[MOST_FINDINGS];
    size_t count;
};

static void add(struct report *r, const char *name, enum state state, const char *fix,
                const char *format, ...) __attribute__((format(printf, 5, 6)));

static void add(struct report *r, const char *name, enum state state, const char *fix,
                const char *format, ...)
{
    va_list args;
    struct finding *finding = &r->findings[r->count++];
    finding->name = name;
    finding->state = state;
    va_start(args, format);
    (void)vsnprintf(finding->text, sizeof finding->text, format, args);
    va_end(args);
    snprintf(finding->fix, sizeof finding->fix, "%s", fix);
}

static void judge_cpu(struct report *r)
{
    const char *features = r->host.cpu_features[0] ? r->host.cpu_features : "none of interest";
    const char *model = r->host.cpu_model[0] ? r->host.cpu_model : "unknown model";
    add(r, "cpu", STATE_OK, "", "%s, %u CPUs in %u cores; %s", model, r->topo->cpus, r->topo->cores,
        features);
    if (r->best == PKV_CPU_SCALAR) {
        add(r, "kernels", STATE_CHANGE,
            "in a virtual machine, hand the CPU through (qemu: -cpu host)",
            "scalar: this CPU shows no instruction set that faster kernels need");
    } else {
        add(r, "kernels", STATE_OK, "", "%s", pkvi_cpu_name(r->best));
    }
    if (r->host.cpu_quota > 0) {
        add(r, "threads", STATE_NOTE, "docker run --cpus N, or cpu.max of the cgroup",
            "%u: the cgroup allows %.2f CPUs", r->threads, r->host.cpu_quota);
    } else {
        add(r, "threads", STATE_OK, "", "%u: all CPUs this process may use", r->threads);
    }
}

static void judge_topology(struct report *r)
{
    const struct pkvi_topo *topo = r->topo;
    add(r, "caches", STATE_OK, "",
        "L1d %llu KiB, L2 %llu KiB a core; last level %.1f MiB for %u CPUs",
        (unsigned long long)topo->l1d_bytes / 1024, (unsigned long long)topo->l2_bytes / 1024,
        (double)topo->last_level_bytes / 1048576.0, topo->last_level_cpus);
    if (topo->node_count > 1) {
        add(r, "numa", STATE_NOTE, "numactl --cpunodebind=0 --membind=0 pivotkv ...",
            "%u nodes: memory of another node is slower; keep a process on one where it fits",
            topo->node_count);
    } else {
        add(r, "numa", STATE_OK, "", "one node");
    }
}

static void judge_memory(struct report *r)
{
    const struct pkvi_limits *memory = &r->host.memory;
    double total = (double)memory->memory_total_bytes / GIB;
    double available = (double)memory->memory_available_bytes / GIB;
    if (memory->memory_total_bytes == UINT64_MAX) {
        add(r, "memory", STATE_NOTE, "", "unknown: /proc/meminfo cannot be read");
    } else if (memory->cgroup_limit_bytes > 0) {
        add(r, "memory", available < 1 ? STATE_CHANGE : STATE_NOTE,
            "docker run --memory SIZE, or memory.max of the cgroup",
            "%.1f GiB, %.1f GiB available: the cgroup's limit", total, available);
    } else {
        add(r, "memory", STATE_OK, "", "%.1f GiB, %.1f GiB available; no cgroup limit", total,
            available);
    }
    if (strcmp(r->host.huge_pages, "always") == 0 || strcmp(r->host.huge_pages, "madvise") == 0) {
        add(r, "huge pages", STATE_OK, "", "transparent, %s", r->host.huge_pages);
    } else {
        add(r, "huge pages", STATE_CHANGE,
            "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
            "transparent huge pages are off: weights and KV are read through 4 KiB pages");
    }
    if (r->host.memlock_bytes == UINT64_MAX || r->host.may_lock) {
        add(r, "memlock", STATE_OK, "", "no limit");
    } else {
        add(r, "memlock", STATE_NOTE,
            "ulimit -l unlimited; docker run --ulimit memlock=-1; systemd: LimitMEMLOCK=infinity",
            "%llu KiB: more pinned host memory than that may be refused",
            (unsigned long long)r->host.memlock_bytes / 1024);
    }
}

static void judge_driver(struct report *r)
{
    if (r->host.driver[0] == '\0') {
        add(r, "gpu", STATE_NOTE, "", "no NVIDIA driver%s: the cpu device runs everything",
            r->has_cuda ? ", though this build has CUDA" : "");
    } else if (!r->host.gpu_node) {
        add(r, "gpu", STATE_CHANGE, "docker run --gpus all",
            "driver %s is loaded, but /dev/nvidiactl is not here", r->host.driver);
    } else if (!r->has_cuda) {
        add(r, "gpu", STATE_CHANGE,
            "install the CUDA toolkit (12.0 or newer, nvcc in PATH), remove the build folder, "
            "build again",
            "driver %s, %u GPUs, but this build has no CUDA: the cpu device runs everything",
            r->host.driver, r->host.gpus);
    } else {
        add(r, "gpu", STATE_OK, "", "driver %s, %u GPUs", r->host.driver, r->host.gpus);
    }
}

/* ---- text ---- */

static enum pkv_status make_text(const struct report *r, char **text_out)
{
    char *text = NULL;
    size_t bytes = 0, fixes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for the report");
    }
    for (size_t i = 0; i < r->count; i++) {
        const struct finding *finding = &r->findings[i];
        fprintf(out, "%-11s %-7s %s\n", finding->name, state_names[finding->state], finding->text);
        for (uint32_t n = 0; strcmp(finding->name, "numa") == 0 && n < r->topo->node_count; n++) {
            const struct pkvi_topo_node *node = &r->topo->nodes[n];
            fprintf(out, "%-11s %-7s node %u: CPUs %s, %.1f GiB", "", "", node->number,
                    node->cpu_list, (double)node->memory_bytes / GIB);
            if (node->free_bytes > 0) {
                fprintf(out, ", %.1f GiB free", (double)node->free_bytes / GIB);
            }
            fprintf(out, "\n");
        }
        fixes += finding->state != STATE_OK && finding->fix[0];
    }
    fprintf(out, fixes ? "\nWhat would change it:\n" : "\nNothing to change.\n");
    for (size_t i = 0; i < r->count; i++) {
        const struct finding *finding = &r->findings[i];
        if (finding->state != STATE_OK && finding->fix[0]) {
            fprintf(out, "  %-9s %s\n", finding->name, finding->fix);
        }
    }
    if (fclose(out) != 0) {
        free(text);
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for the report");
    }
    *text_out = text;
    return PKV_OK;
}

/* ---- JSON ---- */

/* NULL for what is not known or not limited. */
static json_t *bytes_or_null(uint64_t bytes)
{
    return bytes == 0 || bytes > INT64_MAX ? json_null() : json_integer((json_int_t)bytes);
}

static json_t *cpu_json(const struct report *r)
{
    json_t *quota = r->host.cpu_quota > 0 ? json_real(r->host.cpu_quota) : json_null();
    return json_pack("{s:s, s:s, s:s, s:i, s:i, s:o, s:o, s:o, s:o}", "model", r->host.cpu_model,
                     "features", r->host.cpu_features, "kernels", pkvi_cpu_name(r->best), "cpus",
                     (int)r->topo->cpus, "threads", (int)r->threads, "quota_cpus", quota,
                     "l1d_bytes", bytes_or_null(r->topo->l1d_bytes), "l2_bytes",
                     bytes_or_null(r->topo->l2_bytes), "last_level_bytes",
                     bytes_or_null(r->topo->last_level_bytes));
}

static json_t *nodes_json(const struct pkvi_topo *topo)
{
    json_t *nodes = json_array();
    for (uint32_t i = 0; i < topo->node_count; i++) {
        const struct pkvi_topo_node *node = &topo->nodes[i];
        json_array_append_new(nodes, json_pack("{s:i, s:s, s:o, s:o}", "node", (int)node->number,
                                               "cpus", node->cpu_list, "memory_bytes",
                                               bytes_or_null(node->memory_bytes), "free_bytes",
                                               bytes_or_null(node->free_bytes)));
    }
    return nodes;
}

static json_t *findings_json(const struct report *r)
{
    json_t *findings = json_array();
    for (size_t i = 0; i < r->count; i++) {
        const struct finding *finding = &r->findings[i];
        json_array_append_new(findings,
                              json_pack("{s:s, s:s, s:s, s:s}", "name", finding->name, "state",
                                        state_names[finding->state], "text", finding->text, "fix",
                                        finding->state ? finding->fix : ""));
    }
    return findings;
}

static enum pkv_status make_json(const struct report *r, char **text_out)
{
    const struct pkvi_host *host = &r->host;
    json_t *memory = json_pack(
        "{s:o, s:o, s:o, s:o, s:s}", "total_bytes", bytes_or_null(host->memory.memory_total_bytes),
        "available_bytes", bytes_or_null(host->memory.memory_available_bytes), "cgroup_limit_bytes",
        bytes_or_null(host->memory.cgroup_limit_bytes), "memlock_bytes",
        bytes_or_null(host->memlock_bytes), "huge_pages", host->huge_pages);
    json_t *gpu = json_pack("{s:s, s:i, s:b}", "driver", host->driver, "gpus", (int)host->gpus,
                            "cuda", r->has_cuda);
    json_t *root =
        json_pack("{s:o, s:o, s:o, s:o, s:o}", "cpu", cpu_json(r), "nodes", nodes_json(r->topo),
                  "memory", memory, "gpu", gpu, "findings", findings_json(r));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text) {
        return PKV_FAIL(PKV_ERR_NO_MEMORY, "no memory for the report");
    }
    *text_out = text;
    return PKV_OK;
}

enum pkv_status pkvi_doctor_text(const char *root, const char *synthetic, bool has_cuda, bool json,
                                 char **text_out)
{
    struct report report = {
        .threads = pkvi_threads_available(), .best = pkvi_cpu_best(), .has_cuda = has_cuda};
    PKV_TRY(pkvi_topo_open(synthetic, &report.topo));
    pkvi_host_query(root, &report.host);
    judge_cpu(&report);
    judge_topology(&report);
    judge_memory(&report);
    judge_driver(&report);
    enum pkv_status status = json ? make_json(&report, text_out) : make_text(&report, text_out);
    pkvi_topo_close(report.topo);
    return status;
}

enum pkv_status pkv_doctor(bool json, char **text_out)
{
    if (!text_out) {
        return PKV_FAIL(PKV_ERR_INVALID, "doctor: NULL argument");
    }
    return pkvi_doctor_text("", NULL, HAS_CUDA, json, text_out);
}
