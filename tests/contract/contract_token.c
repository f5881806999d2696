// SPDX-License-Identifier: Apache-2.0
//
// Malformed tokens: each byte changed, cut at each byte. A token comes by the host's own ways, so nothing of it is believed. Each is given in a block of
// exactly its size, so that a sanitizer sees a byte read too many.

#include "tests/contract/contract.h"

// docs/wire.md, "Tokens".
enum {
    AT_KIND = 5,
    AT_BUFFERS = 6,
    AT_CONN = 8,
    AT_SLOT = 16,
    AT_GEN = 20,
    AT_TOTAL = 24,
    AT_KEYS = 32
};

struct fixture {
    lien_buf *source, *target;
    lien_grant *grant;
    lien_token token;
    lien_space *space;
};

static void *exactly(const void *bytes, size_t len)
{
    void *copy = malloc(len > 0 ? len : 1);
    CHECK(copy);
    memcpy(copy, bytes, len);
    return copy;
}

// Every function that takes a token refuses this one.
static void all_refuse(int code, const struct fixture *f, const void *bytes, size_t len)
{
    lien_read *read = UNTOUCHED;
    lien_buf *slot = f->target, *kept = slot;
    lien_token_info info = {.size = sizeof info, .conn = 77};
    REFUSES(code, lien_token_open, w.ab, bytes, len, &info);
    REFUSES(code, lien_read_start, w.ab, bytes, len, f->space, NULL, &read);
    REFUSES(code, lien_read_wait, w.ab, bytes, len, &slot, 1, NULL);
    REFUSES(code, lien_release, w.ab, bytes, len);
    CHECK(info.conn == 77 && read == UNTOUCHED && slot == kept);
}

static void cuts(const struct fixture *f)
{
    for (size_t len = 0; len < f->token.len; len++) {
        void *bytes = exactly(f->token.bytes, len);
        all_refuse(LIEN_EPROTO, f, bytes, len);
        free(bytes);
    }
    uint8_t longer[LIEN_TOKEN_MAX + 8] = {0};
    memcpy(longer, f->token.bytes, f->token.len);
    all_refuse(LIEN_EPROTO, f, longer, f->token.len + 1);
    all_refuse(LIEN_EPROTO, f, longer, f->token.len + 24);
    all_refuse(LIEN_EPROTO, f, longer, sizeof longer);
    all_refuse(LIEN_EPROTO, f, longer, SIZE_MAX);
}

static uint32_t gen_of(const uint8_t *token)
{
    uint32_t gen = 0;
    for (unsigned i = 0; i < 4; i++)
        gen |= (uint32_t)token[AT_GEN + i] << (8 * i);
    return gen;
}

// Bytes 0 .. 31 but kind and slot, and the lengths of keys: whatever is changed, core itself refuses.
static void flips_of_header(const struct fixture *f)
{
    for (size_t at = 0; at < f->token.len; at++) {
        bool in_length = at >= AT_KEYS && (at - AT_KEYS) % 24 >= 16;
        if ((at >= AT_KEYS && !in_length) || at == AT_KIND || (at >= AT_SLOT && at < AT_GEN))
            continue;
        for (unsigned bit = 0; bit < 8; bit++) {
            uint8_t *bytes = exactly(f->token.bytes, f->token.len);
            bytes[at] ^= (uint8_t)(1u << bit);
            int code = at >= AT_CONN && at < AT_SLOT ? LIEN_ESTALE : LIEN_EPROTO;
            uint32_t gen = gen_of(bytes);
            if (at < AT_GEN || at >= AT_TOTAL || gen == 0) {
                all_refuse(code, f, bytes, f->token.len);
            } else { // well-formed: a grant that is over, or one that cannot have been made yet
                lien_read *read = UNTOUCHED;
                lien_token_info info = {.size = sizeof info};
                code = gen < gen_of(f->token.bytes) ? LIEN_ESTALE : LIEN_EPROTO;
                ANSWERS(0, lien_token_open, w.ab, bytes, f->token.len, &info);
                REFUSES(code, lien_read_start, w.ab, bytes, f->token.len, f->space, NULL, &read);
                REFUSES(code, lien_release, w.ab, bytes, f->token.len);
            }
            free(bytes);
        }
    }
}

static void kind_and_slot(const struct fixture *f)
{
    lien_token t = f->token;
    for (unsigned kind = 0; kind < 256; kind++) {
        t.bytes[AT_KIND] = (uint8_t)kind;
        lien_token_info info = {.size = sizeof info};
        if (kind == 1 || kind == 2) {
            ANSWERS(0, lien_token_open, w.ab, t.bytes, t.len, &info);
            CHECK(info.held == (kind == 1));
        } else {
            all_refuse(LIEN_EPROTO, f, t.bytes, t.len);
        }
    }
    t = f->token;
    memset(t.bytes + AT_SLOT, 0xff, 4); // no table is so large
    lien_read *read = UNTOUCHED;
    REFUSES(LIEN_EPROTO, lien_read_start, w.ab, t.bytes, t.len, f->space, NULL, &read);
    REFUSES(LIEN_EPROTO, lien_release, w.ab, t.bytes, t.len);
    CHECK(read == UNTOUCHED);
}

// Address and key are the provider's: core cannot tell a wrong one. The READ is refused there, or reads other bytes of the same region (README, "What
// is not promised"); what it costs is that connection alone, and the buffer comes back either way.
static void flips_of_keys(const struct fixture *f)
{
    for (size_t at = AT_KEYS; at < AT_KEYS + 16; at++) {
        lien_conn *ab = NULL, *ba = NULL;
        lien_grant *grant = NULL;
        lien_token t;
        lien_buf *source = f->source, *slot = contract_buf(w.pool_a, 64, 2), *kept = slot;
        CHECK(lien_conn_open_wait(w.a, w.address_b, NULL, &ab) == 0);
        CHECK(lien_listener_accept_wait(w.listener_b, 5000, &ba) == 0);
        CHECK(lien_grant_open(ba, &source, 1, NULL, &t, &grant) == 0);
        t.bytes[at] ^= 0x80;
        lien_read_opts opts;
        lien_read_opts_init(&opts);
        opts.timeout_ms = 5000;
        contract_note("lien_read_wait");
        int rc = lien_read_wait(ab, t.bytes, t.len, &slot, 1, &opts);
        if (rc != 0 && lien_errscope(rc) != LIEN_SCOPE_CONN)
            fprintf(stderr, "byte %zu: %s\n", at, lien_errname(rc));
        CHECK(rc == 0 || lien_errscope(rc) == LIEN_SCOPE_CONN);
        CHECK(slot == kept);
        void *data;
        CHECK(lien_buf_mut(slot, &data) == 0);
        CHECK(lien_conn_close_wait(&ab, 5000) == 0);
        CHECK(lien_conn_close_wait(&ba, 5000) == 0);
        CHECK(lien_grant_wait(grant, 0) == 0 && lien_grant_close(&grant) == 0);
        lien_buf_free(&slot);
    }
}

// The sum of lengths, and address plus length, wrap around.
static void overflows(const struct fixture *f)
{
    lien_token t = f->token;
    memset(t.bytes + AT_TOTAL, 0xff, 8);
    all_refuse(LIEN_EPROTO, f, t.bytes, t.len);
    memset(t.bytes + AT_KEYS + 16, 0xff, 8); // and one key as long: two of them wrap
    all_refuse(LIEN_EPROTO, f, t.bytes, t.len);
    t = f->token;
    memset(t.bytes + AT_KEYS, 0xff, 8);
    all_refuse(LIEN_EPROTO, f, t.bytes, t.len);
}

static void arguments(const struct fixture *f)
{
    lien_token_info info = {.size = sizeof info};
    REFUSES(LIEN_EINVAL, lien_token_open, NULL, f->token.bytes, f->token.len, &info);
    REFUSES(LIEN_EINVAL, lien_token_open, w.ab, NULL, f->token.len, &info);
    REFUSES(LIEN_EINVAL, lien_token_open, w.ab, f->token.bytes, f->token.len, NULL);
    REFUSES(LIEN_ESTALE, lien_token_open, w.ac, f->token.bytes, f->token.len, &info);
    for (size_t size = 0; size < sizeof(size_t); size++) {
        memset(&info, 0x5e, sizeof info);
        info.size = size;
        REFUSES(LIEN_EINVAL, lien_token_open, w.ab, f->token.bytes, f->token.len, &info);
        CHECK(info.conn == 0x5e5e5e5e5e5e5e5eu);
    }
}

// Buffers of no length: the grant holds, can be read, and is released as any other.
static void empty_grant(void)
{
    lien_buf *source = contract_buf(w.pool_b, 16, 1), *slot = contract_buf(w.pool_a, 16, 2);
    lien_grant *grant = NULL;
    lien_token t;
    lien_token_info info = {.size = sizeof info};
    CHECK(lien_buf_set_len(source, 0) == 0);
    ANSWERS(0, lien_grant_open, w.ba, &source, 1, NULL, &t, &grant);
    ANSWERS(0, lien_token_open, w.ab, t.bytes, t.len, &info);
    CHECK(info.len == 0 && info.bufs == 0 && info.held);
    ANSWERS(0, lien_read_wait, w.ab, t.bytes, t.len, &slot, 1, NULL);
    ANSWERS(0, lien_release, w.ab, t.bytes, t.len);
    ANSWERS(0, lien_grant_wait, grant, 5000);
    CHECK(slot && lien_grant_close(&grant) == 0);
    lien_buf_free(&slot);
    lien_buf_free(&source);
}

void contract_token(void)
{
    struct fixture f = {.source = contract_buf(w.pool_b, 64, 9),
                        .target = contract_buf(w.pool_a, 128, 2)};
    lien_buf *target = contract_buf(w.pool_a, 128, 2);
    lien_buf *both[] = {f.source, f.source}; // one buffer may be granted twice
    CHECK(lien_space_open(w.a, &target, 1, &f.space) == 0);
    CHECK(lien_grant_open(w.ba, both, 2, NULL, &f.token, &f.grant) == 0);
    arguments(&f);
    cuts(&f);
    flips_of_header(&f);
    kind_and_slot(&f);
    overflows(&f);
    // The grant itself is as good as ever.
    ANSWERS(0, lien_release, w.ab, f.token.bytes, f.token.len);
    CHECK(lien_grant_wait(f.grant, 5000) == 0 && lien_grant_close(&f.grant) == 0);
    flips_of_keys(&f);
    empty_grant();
    lien_space_free(&f.space);
    lien_buf_free(&f.source);
    lien_buf_free(&f.target);
}
