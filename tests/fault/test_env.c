// SPDX-License-Identifier: Apache-2.0
//
// What the environment asks for and cannot have is a named error: providers, contradictions, unknown variables.

#include "tests/fault/fault.h"

static int open_with(const char *fi, const char *lien, const char *name, const char *value)
{
    lien_ctx *ctx = NULL;
    lien_ctx_opts opts;
    lien_ctx_opts_init(&opts);
    opts.log = fault_log_line;
    fault_log_clear();
    unsetenv("FI_PROVIDER");
    unsetenv("LIEN_PROVIDER");
    if (fi)
        setenv("FI_PROVIDER", fi, 1);
    if (lien)
        setenv("LIEN_PROVIDER", lien, 1);
    if (name)
        setenv(name, value, 1);
    int rc = lien_ctx_open(&opts, &ctx);
    if (name)
        unsetenv(name);
    CHECK((rc == 0) == (ctx != NULL));
    if (ctx)
        CHECK_EQ(lien_ctx_close(&ctx), 0);
    return rc;
}

static void test(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    CHECK_EQ(open_with("sockets", NULL, NULL, NULL), LIEN_ENOPROVIDER);
    CHECK(fault_log_has("candidate tcp"));
    CHECK(fault_log_has("FI_PROVIDER is \"sockets\""));
    CHECK_EQ(open_with("no-such-thing", NULL, NULL, NULL), LIEN_ENOPROVIDER);
    CHECK(fault_log_has("candidate tcp"));
    CHECK(fault_log_has("no-such-thing"));
    CHECK_EQ(open_with("^tcp,verbs", NULL, NULL, NULL), LIEN_ENOPROVIDER);
    CHECK_EQ(open_with(NULL, "nonsense", NULL, NULL), LIEN_ENOPROVIDER);
    CHECK(fault_log_has("candidate tcp"));
    CHECK(fault_log_has("nonsense"));
    CHECK_EQ(open_with("sockets", "tcp", NULL, NULL), LIEN_EOPTION);
    CHECK(fault_log_has("FI_PROVIDER"));
    CHECK_EQ(open_with("^tcp", "tcp", NULL, NULL), LIEN_EOPTION);
    CHECK_EQ(open_with("tcp", NULL, "LIEN_HARTBEAT_MS", "1"), LIEN_EOPTION);
    CHECK(fault_log_has("LIEN_HARTBEAT_MS"));
    CHECK(fault_log_has("LIEN_HEARTBEAT_MS"));
    CHECK_EQ(open_with("tcp", NULL, "LIEN_HEARTBEAT_MS", "soon"), LIEN_EOPTION);
    CHECK(fault_log_has("soon"));
    CHECK_EQ(open_with("tcp", "tcp", "LIEN_GRPC_ANYTHING", "1"), 0); // a shim's
    CHECK_EQ(open_with("sockets,tcp", NULL, NULL, NULL), 0);
}

int main(int argc, char **argv)
{
    return fault_main(argc, argv, test);
}
