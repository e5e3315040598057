/* A driver library whose behaviour a file says, for tests: `devices` beside the library has one line for each device,
 *   UUID TOTAL_MIB USED_MIB STATE [PID...]
 * where STATE is `well`, `lost` (fell off the bus), `busy` (answers nothing for now), `unlisted` (well, but does not tell its processes),
 * `cut` (in MIG mode, in two parts, and does not tell how much it computes), `busyN` (well, and computes N hundredths of the time) or `unreachable` (its file would have the number 4095, which no machine has).
 * It is read anew at every call. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int result;
enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, LOST = 15, UNKNOWN = 999 };
enum { DEVICES_MAX = 8, PIDS_MAX = 16 };
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
struct line { char uuid[64], state[16]; unsigned long long total, used; unsigned pids[PIDS_MAX], count; };

static int read_lines(struct line *lines) {
    char path[4096] = "", text[1024];
    int count = 0;
    Dl_info here;
    if (dladdr((void *)read_lines, &here)) snprintf(path, sizeof path - 16, "%s", here.dli_fname);
    char *end = strrchr(path, '/');
    if (!end) return 0;
    strcpy(end + 1, "devices");
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (count < DEVICES_MAX && fgets(text, sizeof text, file)) {
        struct line *line = &lines[count];
        int at = 0;
        if (sscanf(text, "%63s %llu %llu %15s%n", line->uuid, &line->total, &line->used, line->state, &at) != 4) continue;
        char *rest = text + at;
        for (line->count = 0; line->count < PIDS_MAX; line->count++) {
            char *next;
            unsigned long pid = strtoul(rest, &next, 10);
            if (next == rest) break;
            line->pids[line->count] = (unsigned)pid;
            rest = next;
        }
        count++;
    }
    fclose(file);
    return count;
}

/* A handle is a line's number plus one. */
static result line_of(void *device, struct line *found) {
    struct line lines[DEVICES_MAX];
    size_t at = (size_t)device - 1;
    if (at >= (size_t)read_lines(lines)) return LOST;
    *found = lines[at];
    if (!strcmp(found->state, "lost")) return LOST;
    return strcmp(found->state, "busy") ? SUCCESS : UNKNOWN;
}

result nvmlInit_v2(void) { return SUCCESS; }
result nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(result code) { (void)code; return "as the file says"; }
result nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "580.01"); return SUCCESS; }
result nvmlDeviceGetCount_v2(unsigned *count) {
    struct line lines[DEVICES_MAX];
    *count = (unsigned)read_lines(lines);
    return SUCCESS;
}
result nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)(size_t)(index + 1); return SUCCESS; }
result nvmlDeviceGetHandleByUUID(const char *uuid, void **device) {
    struct line lines[DEVICES_MAX];
    int count = read_lines(lines);
    for (int at = 0; at < count; at++)
        if (!strcmp(lines[at].uuid, uuid)) { *device = (void *)(size_t)(at + 1); return SUCCESS; }
    return NOT_FOUND;
}
/* The handle of a part has the part's number above the line's. */
enum { PARTS = 2, PART = 256, NODE = 4095 };
result nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    struct line line;
    result found = line_of(device, &line);
    if (found == SUCCESS) *current = *pending = !strcmp(line.state, "cut");
    return found;
}
result nvmlDeviceGetMaxMigDeviceCount(void *device, unsigned *count) { (void)device; *count = 7; return SUCCESS; }
result nvmlDeviceGetMigDeviceHandleByIndex(void *device, unsigned index, void **part) {
    *part = (void *)((size_t)device + PART * (size_t)(index + 1));
    return index < PARTS ? SUCCESS : NOT_FOUND;
}
result nvmlDeviceGetMinorNumber(void *device, unsigned *number) {
    struct line line;
    result found = line_of(device, &line);
    *number = NODE;
    return found != SUCCESS || !strcmp(line.state, "unreachable") ? found : NOT_SUPPORTED;
}
result nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    struct line line;
    size_t part = (size_t)device / PART;
    if (part) { snprintf(text, length, "MIG-00000000-0000-0000-0000-%012zu", (size_t)device % PART * 10 + part); return SUCCESS; }
    result found = line_of(device, &line);
    if (found == SUCCESS) snprintf(text, length, "%s", line.uuid);
    return found;
}
result nvmlDeviceGetName(void *device, char *text, unsigned length) { (void)device; snprintf(text, length, "Fake"); return SUCCESS; }
result nvmlDeviceGetMemoryInfo_v2(void *device, memory *info) {
    struct line line;
    result found = line_of(device, &line);
    if (found != SUCCESS) return found;
    if (info->version != (sizeof(memory) | (2u << 24))) return INVALID;
    info->total = line.total << 20;
    info->used = line.used << 20;
    info->free = info->total - info->used;
    info->reserved = 0;
    return SUCCESS;
}
result nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, process *listed) {
    struct line line;
    result found = line_of(device, &line);
    if (found != SUCCESS) return found;
    if (!strcmp(line.state, "unlisted")) return NOT_SUPPORTED;
    unsigned room = *count;
    *count = line.count;
    if (line.count > room) return TOO_SMALL;
    for (unsigned at = 0; at < line.count; at++) listed[at] = (process){line.pids[at], 0, 0, 0};
    return SUCCESS;
}
typedef struct { unsigned gpu, memory; } utilization;
result nvmlDeviceGetUtilizationRates(void *device, utilization *rates) {
    struct line line;
    result found = line_of(device, &line);
    if (found != SUCCESS) return found;
    if (!strcmp(line.state, "cut")) return NOT_SUPPORTED;
    rates->gpu = rates->memory = 0;
    sscanf(line.state, "busy%u", &rates->gpu);
    return SUCCESS;
}
