/* AMD's management library, serving a scripted machine.
 *
 * The machine is a file, named by FAKE_AMDSMI at amdsmi_init, that whoever scripts it maps as well: what changes there is
 * what the next call answers. The layout is that of __init__.py. What the bindings want and this does not have answers
 * "not supported": those functions are written by build().
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define GPUS 8
#define LINKS 8
#define VALUES 32
#define ABSENT INT64_MIN

enum { SUCCESS, INVALID = 1, NOT_SUPPORTED = 2, NOT_INIT = 32 };
enum value {
    TEMPERATURE, CRITICAL, EMERGENCY, MEMORY_TEMPERATURE, POWER_W, POWER_CAP_UW, UTILIZATION, MEMORY_USED_MB, MEMORY_TOTAL_MB,
    ECC_CORRECTED, ECC_UNCORRECTED, ECC_DEFERRED, PCIE_WIDTH, PCIE_WIDTH_MAX, PCIE_SPEED, PCIE_SPEED_MAX, PCIE_REPLAYS,
    PROCHOT, SOCKET_THERMAL, HBM_THERMAL, VR_THERMAL, POWER_VIOLATION, PAGES_PENDING, PAGES_UNRESERVABLE, CLOCK_MHZ,
};
struct gpu {
    char uuid[64], name[64];
    int64_t error;           /* what every call about it returns, 0: it answers */
    int64_t value[VALUES];
    int64_t link[LINKS];     /* 0 down, 1 up, 2 disabled */
    int64_t links;
};
struct machine {
    int64_t layout, error, count;
    char hangs[80];
    int64_t calls;
    struct gpu gpu[GPUS];
};
static volatile struct machine *machine;

static int enter(const char *function) {
    if (!machine) return NOT_INIT;
    machine->calls++;
    while (strcmp((const char *)machine->hangs, function) == 0) {
        struct timespec pause = {0, 2000000L};
        nanosleep(&pause, NULL);
    }
    return (int)machine->error;
}

static int enter_gpu(const char *function, void *device, volatile struct gpu **gpu) {
    int error = enter(function);
    if (error) return error;
    int64_t index = (int64_t)(intptr_t)device - 1;
    if (index < 0 || index >= machine->count) return INVALID;
    *gpu = &machine->gpu[index];
    return (int)(*gpu)->error;
}

#define ENTER(device) volatile struct gpu *gpu; int error = enter_gpu(__func__, device, &gpu); if (error) return error
#define NEEDS(name) if (gpu->value[name] == ABSENT) return NOT_SUPPORTED

int amdsmi_init(uint64_t flags) {
    (void)flags;
    const char *path = getenv("FAKE_AMDSMI");
    int file = path ? open(path, O_RDWR) : -1;
    if (file < 0) return 34;
    void *at = mmap(NULL, sizeof(struct machine), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (at == MAP_FAILED || ((struct machine *)at)->layout != (int64_t)sizeof(struct machine)) return 34;
    machine = at;
    return (int)machine->error;
}
int amdsmi_shut_down(void) { return machine ? SUCCESS : NOT_INIT; }
int amdsmi_get_socket_handles(uint32_t *count, void **handles) {
    int error = enter(__func__);
    if (error) return error;
    if (handles) handles[0] = (void *)1;
    *count = 1;
    return SUCCESS;
}
int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    (void)socket;
    int error = enter(__func__);
    if (error) return error;
    for (int64_t i = 0; handles && i < machine->count; i++) handles[i] = (void *)(intptr_t)(i + 1);
    *count = (uint32_t)machine->count;
    return SUCCESS;
}
int amdsmi_get_gpu_device_uuid(void *device, uint32_t *length, char *uuid) {
    ENTER(device);
    snprintf(uuid, *length, "%s", (const char *)gpu->uuid);
    return SUCCESS;
}
int amdsmi_get_gpu_device_bdf(void *device, uint64_t *bdf) {
    ENTER(device);
    *bdf = (uint64_t)(0x10 * (intptr_t)device) << 8;
    return SUCCESS;
}
int amdsmi_get_temp_metric(void *device, uint32_t sensor, uint32_t metric, int64_t *degrees) {
    ENTER(device);
    int what = sensor == 2 ? MEMORY_TEMPERATURE : metric == 0 ? TEMPERATURE : metric == 5 ? CRITICAL : EMERGENCY;
    if (gpu->value[what] == ABSENT) return NOT_SUPPORTED;
    *degrees = gpu->value[what];
    return SUCCESS;
}
struct power { uint64_t socket; uint32_t current, average; uint64_t volts[3]; uint32_t limit; };
int amdsmi_get_power_info(void *device, struct power *power) {
    ENTER(device);
    NEEDS(POWER_W);
    memset(power, 0, sizeof *power);
    power->socket = 0xFFFF;
    power->current = (uint32_t)gpu->value[POWER_W];
    return SUCCESS;
}
int amdsmi_get_power_cap_info(void *device, uint32_t sensor, uint64_t *cap) {
    (void)sensor;
    ENTER(device);
    NEEDS(POWER_CAP_UW);
    cap[0] = (uint64_t)gpu->value[POWER_CAP_UW];
    return SUCCESS;
}
int amdsmi_get_gpu_activity(void *device, uint32_t *use) {
    ENTER(device);
    NEEDS(UTILIZATION);
    use[0] = (uint32_t)gpu->value[UTILIZATION];
    use[1] = use[2] = 0xFFFF;
    return SUCCESS;
}
int amdsmi_get_gpu_vram_usage(void *device, uint32_t *memory) {
    ENTER(device);
    memory[0] = (uint32_t)gpu->value[MEMORY_TOTAL_MB];
    memory[1] = (uint32_t)gpu->value[MEMORY_USED_MB];
    return SUCCESS;
}
int amdsmi_get_gpu_total_ecc_count(void *device, uint64_t *count) {
    ENTER(device);
    NEEDS(ECC_UNCORRECTED);
    for (int i = 0; i < 3; i++) count[i] = (uint64_t)gpu->value[ECC_CORRECTED + i];
    return SUCCESS;
}
int amdsmi_get_gpu_ecc_count(void *device, uint64_t block, uint64_t *count) { /* all errors are of the memory: UMC */
    ENTER(device);
    for (int i = 0; i < 3; i++) count[i] = block == 1 ? (uint64_t)gpu->value[ECC_CORRECTED + i] : 0;
    return SUCCESS;
}
struct pcie_static { uint16_t width, pad; uint32_t speed, interface, slot, interface_max, pad1; uint64_t reserved[9]; };
struct pcie_metric { uint16_t width, pad; uint32_t speed, bandwidth, pad1; uint64_t replays, more[4]; };
struct pcie { struct pcie_static made; struct pcie_metric is; };
int amdsmi_get_pcie_info(void *device, struct pcie *pcie) {
    ENTER(device);
    NEEDS(PCIE_WIDTH);
    pcie->made.width = (uint16_t)gpu->value[PCIE_WIDTH_MAX];
    pcie->made.speed = (uint32_t)gpu->value[PCIE_SPEED_MAX];
    pcie->is.width = (uint16_t)gpu->value[PCIE_WIDTH];
    pcie->is.speed = (uint32_t)gpu->value[PCIE_SPEED];
    pcie->is.replays = (uint64_t)gpu->value[PCIE_REPLAYS];
    return SUCCESS;
}
struct asic { char name[256]; uint32_t vendor; char vendor_name[256]; };
int amdsmi_get_gpu_asic_info(void *device, struct asic *asic) {
    ENTER(device);
    snprintf(asic->name, sizeof asic->name, "%s", (const char *)gpu->name);
    asic->vendor = 0x1002;
    return SUCCESS;
}
int amdsmi_get_clock_info(void *device, uint32_t sort, uint32_t *clock) {
    (void)sort;
    ENTER(device);
    NEEDS(CLOCK_MHZ);
    clock[0] = (uint32_t)gpu->value[CLOCK_MHZ];
    return SUCCESS;
}
struct violations { uint64_t counts[15]; uint8_t prochot, power, socket, vr, hbm, host; };
int amdsmi_get_violation_status(void *device, struct violations *violations) {
    ENTER(device);
    NEEDS(PROCHOT);
    violations->prochot = (uint8_t)gpu->value[PROCHOT];
    violations->power = (uint8_t)gpu->value[POWER_VIOLATION];
    violations->socket = (uint8_t)gpu->value[SOCKET_THERMAL];
    violations->vr = (uint8_t)gpu->value[VR_THERMAL];
    violations->hbm = (uint8_t)gpu->value[HBM_THERMAL];
    return SUCCESS;
}
struct page { uint64_t address, size; uint32_t status, pad; };
int amdsmi_get_gpu_bad_page_info(void *device, uint32_t *count, struct page *pages) {
    ENTER(device);
    int64_t pending = gpu->value[PAGES_PENDING], all = pending + gpu->value[PAGES_UNRESERVABLE];
    for (int64_t i = 0; pages && i < all; i++)
        pages[i] = (struct page){(uint64_t)i << 12, 4096, i < pending ? 1u : 2u, 0};
    *count = (uint32_t)all;
    return SUCCESS;
}
struct links { uint32_t total, status[LINKS]; };
int amdsmi_get_gpu_xgmi_link_status(void *device, struct links *links) {
    ENTER(device);
    links->total = (uint32_t)gpu->links;
    for (int i = 0; i < LINKS; i++) links->status[i] = (uint32_t)gpu->link[i];
    return SUCCESS;
}
int amdsmi_get_gpu_process_list(void *device, uint32_t *count, void *list) {
    (void)list;
    ENTER(device);
    *count = 0;
    return SUCCESS;
}
