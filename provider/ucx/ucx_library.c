// SPDX-License-Identifier: Apache-2.0
//
// UCX as a library in somebody's process. Merely by being loaded it takes over the signals of faults and SIGHUP; its log goes to standard output; it can patch malloc and mmap. So it is loaded when the
// provider is first opened, with RTLD_LOCAL, with every signal blocked and each disposition put back; its log goes to ours, unless the user asked for it by UCX's own variables; memory hooks are
// forbidden before anything could install one. It is never unloaded. The pointers are written once, under `lock`; what UCX said is each thread's own.

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ucm/api/ucm.h>
#include <ucs/debug/log_def.h>

#include "provider/ucx/ucx.h"

#define LIBRARY "libucp.so.0"
#define HOOKS   "libucm.so.0"

struct lieni_ucx_calls lieni_ucx;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;
static char fault[256];

// -- Log -------------------------------------------------------------------------------------------------------------------------------

static _Thread_local char said[256];
static _Thread_local char told[256];

__attribute__((format(printf, 6, 0))) static ucs_log_func_rc_t hear(
    const char *file, unsigned line, const char *function, ucs_log_level_t level,
    const ucs_log_component_config_t *component, const char *message, va_list ap)
{
    (void)file;
    (void)line;
    (void)function;
    (void)component;
    if (level <= UCS_LOG_LEVEL_DIAG)
        vsnprintf(said, sizeof said, message, ap);
    return UCS_LOG_FUNC_RC_STOP;
}

const char *lieni_ucx_said(void)
{
    memcpy(told, said, sizeof told);
    said[0] = '\0';
    return told;
}

// -- Loading ---------------------------------------------------------------------------------------------------------------------------

// dlsym gives a data pointer, also of a function.
static bool find(void *handle, const char *name, void *to)
{
    void *at = dlsym(handle, name);
    memcpy(to, &at, sizeof at);
    if (!at)
        snprintf(fault, sizeof fault, "UCX has no %s", name);
    return at != NULL;
}

static ucm_global_config_t *hooks;

// libucs patches mmap and munmap while it is loaded, by libucm, unless that was made ready before with this forbidden. Lazy: libucm alone misses a function of libucs's, which it calls for hooks only.
static bool forbid_hooks(void)
{
    void (*set)(const ucm_global_config_t *);
    void *handle = dlopen(HOOKS, RTLD_LAZY | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
        snprintf(fault, sizeof fault, "its memory hooks cannot be forbidden: %s", dlerror());
        return false;
    }
    if (!find(handle, "ucm_global_opts", &hooks) || !find(handle, "ucm_set_global_opts", &set))
        return false;
    ucm_global_config_t none = *hooks;
    none.enable_events = none.enable_malloc_hooks = none.enable_malloc_reloc = 0;
    none.enable_dynamic_mmap_thresh = 0;
    none.mmap_hook_mode = UCM_MMAP_HOOK_NONE;
    set(&none);
    return true;
}

static bool find_all(void *handle)
{
    struct lieni_ucx_calls calls;
    void (*push)(ucs_log_func_t);
#define X(name)                                                                                    \
    if (!find(handle, #name, &calls.name))                                                         \
        return false;
    LIENI_UCX_CALLS(X)
#undef X
    if (!find(handle, "ucs_log_push_handler", &push))
        return false;
    hooks->enable_events = 0; // libucs set its own meanwhile
    if (!getenv("UCX_LOG_LEVEL") && !getenv("UCX_LOG_FILE"))
        push(hear);
    lieni_ucx = calls;
    return true;
}

static void *load_quietly(void)
{
    sigset_t all, before;
    stack_t stack;
    struct sigaction actions[65];
    bool known[65] = {false};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int i = 1; i <= 64; i++)
        known[i] = sigaction(i, NULL, &actions[i]) == 0;
    bool has_stack = sigaltstack(NULL, &stack) == 0;
    void *handle = NULL;
    if (forbid_hooks()) {
        handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (!handle)
            snprintf(fault, sizeof fault, "%s", dlerror());
    }
    for (int i = 1; i <= 64; i++) {
        struct sigaction now;
        if (known[i] && sigaction(i, NULL, &now) == 0 &&
            (now.sa_flags != actions[i].sa_flags || now.sa_handler != actions[i].sa_handler))
            sigaction(i, &actions[i], NULL);
    }
    if (has_stack)
        sigaltstack(&stack, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return handle;
}

const char *lieni_ucx_load(void)
{
    pthread_mutex_lock(&lock);
    fault[0] = '\0';
    if (!loaded) {
        void *handle = load_quietly();
        loaded = handle && find_all(handle);
    }
    const char *why = loaded ? NULL : fault;
    pthread_mutex_unlock(&lock);
    return why;
}

// -- Settings --------------------------------------------------------------------------------------------------------------------------

bool lieni_ucx_by_hand(void)
{
    const char *at = getenv("UCX_TLS");
    if (!at || !*at)
        return true;
    while (*at) {
        size_t len = strcspn(at, ",");
        if (!(len == 3 && memcmp(at, "tcp", 3) == 0) && !(len == 4 && memcmp(at, "self", 4) == 0))
            return false;
        at += len;
        at += *at == ',';
    }
    return true;
}

// `theirs`: a variable of the user's that goes before it.
static const struct {
    const char *name, *value, *theirs;
} settings[] = {
    {"TLS", "tcp", "UCX_TLS"},
    {"PROTO_ENABLE", "n", NULL},            // docs/ucx.md speaks of the protocols without
    {"RCACHE_ENABLE", "n", NULL},           // stale registrations
    {"KEEPALIVE_INTERVAL", "inf", NULL},    // core has heartbeats
    {"SOCKADDR_TLS_PRIORITY", "tcp", NULL}, // no connection manager is used
    {"MAX_EAGER_RAILS", "1", NULL},         // one lane keeps messages in order
    {"WARN_INVALID_CONFIG", "n", NULL},
};

static ucs_status_t configure(const char *device, ucp_config_t *config)
{
    ucs_status_t status = UCS_OK;
    for (size_t i = 0; status == UCS_OK && i < sizeof settings / sizeof settings[0]; i++)
        if (!settings[i].theirs || !getenv(settings[i].theirs))
            status = lieni_ucx.ucp_config_modify(config, settings[i].name, settings[i].value);
    if (status == UCS_OK && device[0] && !getenv("UCX_NET_DEVICES"))
        status = lieni_ucx.ucp_config_modify(config, "NET_DEVICES", device);
    return status;
}

int lieni_ucx_context(struct lieni_prov *prov, const char *device, ucp_context_h *context)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED |
                      UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
        .mt_workers_shared = 1,
        .name = "lien",
    };
    ucp_config_t *config = NULL;
    ucs_status_t status = lieni_ucx.ucp_config_read(NULL, NULL, &config);
    if (status == UCS_OK) {
        status = configure(device, config);
        if (status == UCS_OK)
            status = lieni_ucx.ucp_init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, config,
                                                context);
        lieni_ucx.ucp_config_release(config);
    }
    if (status == UCS_OK)
        return 0;
    const char *why = lieni_ucx_said();
    return lieni_ucx_say(prov, LIEN_LOG_ERROR, LIEN_ENODEV,
                         "no UCX context for interface '%s': %s%s%s", device,
                         lieni_ucx.ucs_status_string(status), why[0] ? ": " : "", why);
}

int lieni_ucx_code(ucs_status_t status)
{
    static const struct {
        ucs_status_t status;
        int code;
    } codes[] = {
        {UCS_OK, 0},
        {UCS_ERR_CANCELED, LIEN_ECANCELED},
        {UCS_ERR_CONNECTION_RESET, LIEN_ECLOSED},
        {UCS_ERR_NOT_CONNECTED, LIEN_ECLOSED},
        {UCS_ERR_ENDPOINT_TIMEOUT, LIEN_EPEERLOST},
        {UCS_ERR_UNREACHABLE, LIEN_EPEERLOST},
        {UCS_ERR_REJECTED, LIEN_EREFUSED},
        {UCS_ERR_NO_MEMORY, LIEN_ENOMEM},
    };
    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        if (status == codes[i].status)
            return codes[i].code;
    return LIEN_EIO;
}
