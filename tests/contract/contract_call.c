// SPDX-License-Identifier: Apache-2.0
//
// Calls and requests: bad input. What they do with good input is the matter of tests/calls.

#include <stdlib.h>
#include <string.h>

#include "contract.h"

static void starts(void)
{
    lien_call *call = NULL;
    lien_call_opts opts;
    CALLS(lien_call_opts_init, NULL);
    CALLS(lien_call_opts_init, &opts);
    CHECK(opts.size == sizeof opts && opts.timeout_ms == 0 && !opts.read && !opts.write);
    REFUSES(LIEN_EINVAL, lien_call_start, NULL, "s/m", NULL, 0, NULL, &call);
    REFUSES(LIEN_EINVAL, lien_call_start, w.ab, NULL, NULL, 0, NULL, &call);
    REFUSES(LIEN_EINVAL, lien_call_start, w.ab, "", NULL, 0, NULL, &call);
    REFUSES(LIEN_EINVAL, lien_call_start, w.ab, "s/m", NULL, 1, NULL, &call);
    REFUSES(LIEN_EINVAL, lien_call_wait, NULL, "s/m", NULL, 0, NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_call_wait, w.ab, NULL, NULL, 0, NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_call_wait, w.ab, "s/m", NULL, 1, NULL, NULL);
    opts.timeout_ms = LIEN_FOREVER;
    REFUSES(LIEN_EINVAL, lien_call_start, w.ab, "s/m", NULL, 0, &opts, &call);
    lien_call_opts_init(&opts);
    opts.n_read = 1;
    REFUSES(LIEN_EINVAL, lien_call_start, w.ab, "s/m", NULL, 0, &opts, &call);
    lien_call_opts_init(&opts);
    opts.n_body = LIEN_BUFS_MAX + 1;
    REFUSES(LIEN_EINVAL, lien_call_start, w.ab, "s/m", NULL, 0, &opts, &call);
    char *large = calloc(1, 70000);
    CHECK(large != NULL);
    REFUSES(LIEN_EMSGSIZE, lien_call_start, w.ab, "s/m", large, 70000, NULL, &call);
    free(large);
    CHECK(call == NULL);
    // Nobody serves it.
    ANSWERS(LIEN_ENOTFOUND, lien_call_wait, w.ab, "s/m", NULL, 0, NULL, NULL);
    ANSWERS(0, lien_call_start, w.ab, "s/m", NULL, 0, NULL, &call);
    bool soft = true;
    ANSWERS(LIEN_PATH_KERNEL, lien_call_path, call, &soft);
    CHECK(!soft);
    ANSWERS(LIEN_PATH_NONE, lien_call_path, NULL, &soft);
    ANSWERS(LIEN_PATH_NONE, lien_request_path, NULL, &soft);
    ANSWERS(0, lien_call_cancel, call);
    ANSWERS(0, lien_call_close, &call);
    CHECK(call == NULL);
    REFUSES(LIEN_EINVAL, lien_call_cancel, NULL);
    REFUSES(LIEN_EINVAL, lien_call_close, NULL);
    REFUSES(LIEN_EINVAL, lien_call_close, &call);
    REFUSES(LIEN_EINVAL, lien_conn_goaway, NULL);
}

static void requests(void)
{
    lien_request *none = NULL;
    lien_space *space = NULL;
    lien_buf *buf = NULL;
    const void *data = NULL;
    size_t len = 0;
    lien_transfer_opts opts;
    CALLS(lien_transfer_opts_init, NULL);
    CALLS(lien_transfer_opts_init, &opts);
    CHECK(opts.size == sizeof opts && !opts.ops);
    REFUSES(LIEN_EINVAL, lien_request_args, NULL, &data, &len);
    CHECK(data == NULL && len == 0);
    CALLS(lien_request_body, NULL);
    CALLS(lien_request_method, NULL);
    CHECK(lien_request_body(NULL) == NULL && lien_request_method(NULL) == NULL);
    REFUSES(LIEN_EINVAL, lien_request_take_body, NULL, &buf);
    ANSWERS(0, lien_request_read_len, NULL);
    ANSWERS(0, lien_request_write_len, NULL);
    ANSWERS(0, lien_request_left_ms, NULL);
    ANSWERS(1, lien_request_cancelled, NULL);
    REFUSES(LIEN_EINVAL, lien_request_on_cancel, NULL, NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_request_read, NULL, space, &opts);
    REFUSES(LIEN_EINVAL, lien_request_read_wait, NULL, space, &opts);
    REFUSES(LIEN_EINVAL, lien_request_verify, NULL, NULL, NULL);
    REFUSES(LIEN_EINVAL, lien_request_verify_wait, NULL);
    REFUSES(LIEN_EINVAL, lien_request_write, NULL, &buf, 1, &opts);
    REFUSES(LIEN_EINVAL, lien_request_write_wait, NULL, &buf, 1, &opts);
    REFUSES(LIEN_EINVAL, lien_request_reply, NULL, 0, NULL, 0);
    REFUSES(LIEN_EINVAL, lien_request_reply, &none, 0, NULL, 0);
    REFUSES(LIEN_EINVAL, lien_request_reply_body, &none, 0, NULL, 0, &buf, 1);
    CALLS(lien_request_drop, NULL);
    CALLS(lien_request_drop, &none);
}

void contract_call(void)
{
    starts();
    requests();
}
