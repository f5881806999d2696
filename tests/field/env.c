// SPDX-License-Identifier: Apache-2.0
//
// The process and its settings: registration cache, memory lock, providers that are not there, unknown keys, and how bytes moved. Reports 14 to 19. Cases that need an environment of
// their own run in a process of their own: this program, with --case and a name.

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/options.h"
#include "tests/field/field.h"

// -- Processes of their own --------------------------------------------------------------------------------------------------------

static int open_code(const char *const *settings)
{
    lien_ctx *ctx = NULL;
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.settings = settings;
    opts.log = fault_log_line;
    fault_log_clear();
    int rc = lien_ctx_open(&opts, &ctx);
    if (rc == 0)
        CHECK_EQ(lien_ctx_close(&ctx), 0);
    return rc;
}

static void cache_is_set_right(void)
{
    CHECK_EQ(strcmp(getenv("FI_MR_CACHE_MAX_COUNT"), "0"), 0); // whatever it was
    CHECK_EQ(open_code(NULL), 0);
    setenv("FI_MR_CACHE_MAX_COUNT", "1", 1); // by somebody, afterwards
    CHECK_EQ(open_code(NULL), LIEN_ENOPROVIDER);
    CHECK(fault_log_has("FI_MR_CACHE_MAX_COUNT"));
}

static void provider_not_asked_for(void)
{
    CHECK_EQ(open_code(NULL), LIEN_ENOPROVIDER);
    CHECK(fault_log_has("candidate tcp: not among those asked for"));
    CHECK(fault_log_has("FI_PROVIDER is \"sockets\""));
}

static void provider_excluded(void)
{
    static const char *const tcp[] = {"provider=tcp", NULL};
    CHECK_EQ(open_code(tcp), LIEN_EOPTION); // a contradiction
    CHECK(fault_log_has("FI_PROVIDER"));
}

static void unknown_variable(void)
{
    CHECK_EQ(open_code(NULL), LIEN_EOPTION);
    CHECK(fault_log_has("LIEN_HEARTBEET_MS"));
    CHECK(fault_log_has("LIEN_HEARTBEAT_MS")); // the nearest
}

static void known_variable(void)
{
    static const char *const wins[] = {"heartbeat_ms=777", NULL};
    CHECK_EQ(open_code(NULL), 0);
    CHECK_EQ(open_code(wins), 0);
}

static void value_out_of_range(void)
{
    CHECK_EQ(open_code(NULL), LIEN_EOPTION);
    CHECK(fault_log_has("3600000")); // the limit
}

static const struct {
    const char *name;
    void (*run)(void);
    const char *variable, *value;
} cases[] = {
    {"cache_is_set_right", cache_is_set_right, "FI_MR_CACHE_MAX_COUNT", "7"},
    {"provider_not_asked_for", provider_not_asked_for, "FI_PROVIDER", "sockets"},
    {"provider_excluded", provider_excluded, "FI_PROVIDER", "^tcp"},
    {"unknown_variable", unknown_variable, "LIEN_HEARTBEET_MS", "500"},
    {"known_variable", known_variable, "LIEN_HEARTBEAT_MS", "500"},
    {"value_out_of_range", value_out_of_range, "LIEN_DEAD_MS", "3600001"},
};
#define N_CASES (sizeof cases / sizeof cases[0])

bool field_case(const char *name)
{
    for (unsigned i = 0; i < N_CASES; i++) {
        if (strcmp(cases[i].name, name) != 0)
            continue;
        cases[i].run();
        return true;
    }
    return false;
}

static void run_case(const char *name)
{
    unsigned i = 0;
    int status = -1;
    while (i < N_CASES && strcmp(cases[i].name, name) != 0)
        i++;
    CHECK(i < N_CASES);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        setenv(cases[i].variable, cases[i].value, 1);
        execl("/proc/self/exe", "field_report", "--case", name, (char *)NULL);
        _exit(127);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (status != 0)
        fprintf(stderr, "case %s\n", name);
    CHECK_EQ(status, 0);
}

// -- 14: the registration cache ----------------------------------------------------------------------------------------------------

// The peer reads `own` in a call, and believes it.
static void read_by_peer(struct field *f, void *own, size_t len, uint64_t seed)
{
    struct field_verdict before, after;
    struct field_source s;
    lien_mem *mem = NULL;
    lien_buf *buf = NULL;
    struct field_call c = {0};
    lien_call_opts opts = field_opts();
    memset(&s, 0, sizeof s);
    s.seed = seed;
    fault_fill(own, len, seed);
    CHECK_EQ(lien_mem_register(f->side.ctx, own, len, NULL, &mem), 0);
    CHECK_EQ(lien_mem_buf(mem, 0, len, &buf), 0);
    opts.read = &buf;
    opts.n_read = 1;
    field_ask(f, "verdict", NULL, 0, &before, sizeof before);
    field_start(f, &c, "read", &s, sizeof s, &opts);
    CHECK_EQ(field_over(&c), 0);
    field_ask(f, "verdict", NULL, 0, &after, sizeof after);
    CHECK_EQ(after.believed - before.believed, 1);
    CHECK_EQ(after.acted_wrong, 0);
    lien_buf_free(&buf);
    CHECK_EQ(lien_mem_unregister_wait(&mem, 30000), 0);
}

// Off, whoever turns it on; and memory that was unmapped and is there again, other memory at the same place, is what is read.
void field_report_14_registration_cache(void)
{
    struct field f;
    run_case("cache_is_set_right");
    field_open(&f, 0, NULL, NULL);
    void *at = NULL;
    for (unsigned i = 0; i < 20; i++) {
        void *own = mmap(at, MIB, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED_NOREPLACE : 0), -1, 0);
        CHECK(own != MAP_FAILED && (!at || own == at));
        at = own;
        read_by_peer(&f, own, MIB, i + 1);
        CHECK_EQ(munmap(own, MIB), 0);
    }
    field_close(&f);
}

// -- 15: the memory-lock limit -----------------------------------------------------------------------------------------------------

// Over tcp nothing needs to be locked: with a limit of 0 all goes on.
void field_report_15_memory_lock(void)
{
    const struct rlimit none = {0, 0};
    struct field f;
    struct field_call c = {0};
    struct field_source s;
    lien_call_opts opts = field_opts();
    CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &none), 0); // the other process inherits it
    field_open(&f, 0, NULL, NULL);
    memset(&s, 0, sizeof s);
    s.seed = 1;
    s.len = 8 * MIB;
    lien_space *space = opts.write = field_space(&f, s.len, 9);
    field_start(&f, &c, "write", &s, sizeof s, &opts);
    CHECK_EQ(field_over(&c), 0);
    CHECK(fault_space_is(space, 1));
    lien_space_free(&space);
    field_close(&f);
}

// -- 16: which provider was refused, and why ---------------------------------------------------------------------------------------

void field_report_16_refused_provider(void)
{
    run_case("provider_not_asked_for");
    run_case("provider_excluded");
}

// -- 17: which device and provider, and why; on a machine with an RDMA device at $LIEN_TEST_ADDRESS --------------------------------

static void run_tool(const char *command)
{
    if (system(command) != 0) // NOLINT(concurrency-mt-unsafe)
        fprintf(stderr, "%s\n", command);
}

// One connection within this process from `from` to `to`, both options of provider (NULL: none); its status. With 0 its info is in *info.
static int connect_within(const char *host, const char *from, const char *to, lien_conn_info *info)
{
    const char *const from_settings[] = {"log_level=info", from, NULL};
    const char *const to_settings[] = {"log_level=info", to, NULL};
    struct fault_side client, server;
    lien_listener *listener = NULL;
    lien_conn *conn = NULL;
    char address[96];
    fault_log_clear();
    fault_side_open(&client, from_settings, 0);
    fault_side_open(&server, to_settings, 0);
    snprintf(address, sizeof address, "%s:0", host);
    CHECK_EQ(lien_listener_open(server.ctx, address, NULL, &listener), 0);
    CHECK_EQ(lien_listener_address(listener, address, sizeof address), 0);
    int rc = lien_conn_open_wait(client.ctx, address, NULL, &conn);
    if (rc == 0) {
        fault_info(conn, info);
        CHECK_EQ(lien_conn_close_wait(&conn, 30000), 0);
    }
    CHECK_EQ(lien_listener_close(&listener), 0);
    fault_side_close(&client);
    fault_side_close(&server);
    return rc;
}

void field_report_17_choice(void)
{
    lien_conn_info info;
    const char *host = getenv("LIEN_TEST_ADDRESS");
    char text[128];
    CHECK(host);
    unsetenv("FI_PROVIDER");
    // Before libfabric looks, which it does once. A GID takes a moment.
    run_tool("ip link add d1 type dummy && ip addr add 10.9.3.1/24 dev d1 && ip link set d1 up && "
             "rdma link add rxe1 type rxe netdev d1");
    run_tool("ip link add d2 type dummy && ip addr add 10.9.4.1/24 dev d2 && ip link set d2 up");
    fault_sleep(500);
    // Device, GID and network device of the address are said, and the connection tells provider and path.
    CHECK_EQ(connect_within(host, "provider=verbs", "provider=verbs", &info), 0);
    CHECK(strcmp(info.provider, "verbs") == 0 && info.path == LIEN_PATH_RDMA);
    snprintf(text, sizeof text, "%s is served by device rxe0 port 1 (made of software), GID %s",
             host, host);
    CHECK(fault_log_has(text));
    CHECK(fault_log_has("of d0"));
    // Of two devices it is the one of the address, whichever came first; and one without a device is refused, by no other way.
    CHECK_EQ(connect_within("10.9.3.1", "provider=verbs", "provider=verbs", &info), 0);
    CHECK(
        fault_log_has("10.9.3.1 is served by device rxe1 port 1 (made of software), GID 10.9.3.1"));
    CHECK(connect_within("10.9.4.1", "provider=verbs", "provider=verbs", &info) != 0);
    CHECK(fault_log_has("no RDMA device serves address 10.9.4.1"));
    CHECK(connect_within("127.0.0.1", "provider=verbs", "provider=verbs", &info) != 0);
    CHECK(fault_log_has("no RDMA device serves address 127.0.0.1"));
    // Asked for verbs alone, it never becomes tcp: the error shows both offers.
    CHECK_EQ(connect_within(host, "provider=verbs", "provider=tcp", &info), LIEN_ENOCOMMON);
    CHECK(fault_log_has("verbs") && fault_log_has("tcp"));
    // Where either is allowed, the way that was taken is said with both offers, and told by the connection.
    CHECK_EQ(connect_within(host, NULL, "provider=verbs", &info), 0);
    CHECK_EQ(strcmp(info.provider, "verbs"), 0);
    CHECK(fault_log_has("goes over verbs: this side offers tcp,verbs, the peer verbs"));
    CHECK_EQ(connect_within(host, NULL, "provider=tcp", &info), 0);
    CHECK(strcmp(info.provider, "tcp") == 0 && info.path == LIEN_PATH_KERNEL);
    CHECK(fault_log_has("goes over tcp: this side offers tcp,verbs, the peer tcp"));
}

// -- 18: keys ----------------------------------------------------------------------------------------------------------------------

// Each key of the table with its default: none is unknown, none unused.
static void all_known_keys(void)
{
    static const char *const keys[] = {
#define KEY(key, type, def, min, max, unit, text) #key "=" def,
        LIENI_OPTIONS(KEY)
#undef KEY
    };
    for (unsigned i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *const one[] = {keys[i], NULL};
        int rc = open_code(one);
        if (rc != 0)
            fprintf(stderr, "%s\n", keys[i]);
        CHECK_EQ(rc, 0);
    }
}

void field_report_18_unknown_keys(void)
{
    static const char *const unknown[] = {"heartbeet_ms=500", NULL};
    static const char *const no_value[] = {"heartbeat_ms", NULL};
    static const char *const no_number[] = {"heartbeat_ms=often", NULL};
    CHECK_EQ(open_code(unknown), LIEN_EOPTION);
    CHECK(fault_log_has("heartbeat_ms")); // the nearest
    CHECK_EQ(open_code(no_value), LIEN_EOPTION);
    CHECK_EQ(open_code(no_number), LIEN_EOPTION);
    CHECK(fault_log_has("often"));
    all_known_keys();
    run_case("unknown_variable");
    run_case("known_variable");
    run_case("value_out_of_range");
}

// -- 19: how bytes moved -----------------------------------------------------------------------------------------------------------

void field_report_19_path(void)
{
    struct field f;
    struct fault_read r = {0};
    lien_token token;
    lien_conn_info info;
    lien_ctx_stats before, after;
    field_open(&f, 0, NULL, NULL);
    fault_info(f.conn, &info);
    CHECK_EQ(info.path, LIEN_PATH_KERNEL);
    CHECK_EQ(strcmp(info.provider, "tcp"), 0);
    fault_ask_grant(f.conn, 16 * MIB, &token);
    lien_space *space = field_space(&f, 16 * MIB, 9);
    fault_stats(&f.side, &before);
    CHECK_EQ(fault_read_start(&r, f.conn, &token, space, LIEN_FOREVER, LIEN_RELEASE), 0);
    CHECK(fault_until(fault_read_is_released, &r, 60000));
    CHECK_EQ(r.status, 0);
    CHECK_EQ(lien_read_path(r.read), LIEN_PATH_KERNEL);
    fault_stats(&f.side, &after);
    CHECK_EQ(after.read_bytes - before.read_bytes, 16 * MIB);
    CHECK_EQ(after.payload_bytes_copied, before.payload_bytes_copied); // and none by Lien
    CHECK(fault_space_is(space, 0));
    lien_read_close(&r.read);
    lien_space_free(&space);
    field_close(&f);
}
