// SPDX-License-Identifier: Apache-2.0
//
// make_corpus DIR: writes the seed corpora that are committed in tests/fuzz/corpus, one file an input, from the encoders. Run it again when a format changes.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/handshake.h"
#include "core/wire.h"
#include "tests/trace/reader.h"
#include "tools/lien-blob/proto.h"

static const char *root;

static void write_seed(const char *target, const char *name, const void *bytes, size_t len)
{
    char path[4096];
    (void)snprintf(path, sizeof path, "%s/%s", root, target);
    (void)mkdir(path, 0777);
    (void)snprintf(path, sizeof path, "%s/%s/%s", root, target, name);
    FILE *file = fopen(path, "wb");
    if (file == NULL || fwrite(bytes, 1, len, file) != len || fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

// Behind one byte that the target reads first.
static void write_prefixed(const char *target, const char *name, uint8_t first, const void *bytes,
                           size_t len)
{
    uint8_t all[8192];
    all[0] = first;
    memcpy(all + 1, bytes, len);
    write_seed(target, name, all, 1 + len);
}

static void must(int rc)
{
    if (rc != 0) {
        fprintf(stderr, "make_corpus: %s\n", lien_errname(rc));
        exit(1);
    }
}

static void write_frame(const char *name, const struct lieni_frame *frame)
{
    uint8_t bytes[4096];
    _Atomic uint64_t copied = 0;
    size_t len = 0;
    must(lieni_frame_encode(frame, bytes, sizeof bytes, &copied, &len));
    write_prefixed("frame", name, 0, bytes, len);
}

static void frames(void)
{
    static const uint8_t head[] = "head";
    struct lieni_frame msg = {
        .kind = LIENI_FRAME_MSG, .number = 1, .head = head, .head_len = sizeof head};
    write_frame("msg-head", &msg);
    msg.n_keys = 2;
    msg.name.gen = 1;
    msg.total = 3;
    msg.keys[0] = (struct lieni_key){.addr = 4096, .key = 77, .len = 1};
    msg.keys[1] = (struct lieni_key){.addr = 0, .key = 78, .len = 2};
    write_frame("msg-body", &msg);
    msg.sums = true;
    msg.keys[0].sum = 0x0123456789abcdef;
    write_frame("msg-sums", &msg);
    msg.sums = false;
    // Refused: lengths that add up to the total only by wrapping, which a search would hardly find.
    msg.keys[0] = (struct lieni_key){.len = UINT64_MAX};
    msg.keys[1] = (struct lieni_key){.len = 4};
    write_frame("msg-wrapping-sum", &msg);
    struct lieni_frame names = {.kind = LIENI_FRAME_RELEASE,
                                .n_names = 2,
                                .names = {{.slot = 1, .gen = 2}, {.slot = 3, .gen = 4}}};
    write_frame("release", &names);
    names.kind = LIENI_FRAME_REVOKE;
    write_frame("revoke", &names);
    write_frame("credit", &(struct lieni_frame){.kind = LIENI_FRAME_CREDIT, .message_credits = 5});
    write_frame("beat", &(struct lieni_frame){.kind = LIENI_FRAME_BEAT});
    write_frame("bye", &(struct lieni_frame){.kind = LIENI_FRAME_BYE});
}

// Prefix 0: the decoder is on side 1.
static void call_frames(void)
{
    struct lieni_frame call = {.kind = LIENI_FRAME_CALL,
                               .call = lieni_call_id(1, 3, 0),
                               .deadline_ms = 1000,
                               .method = "s/m",
                               .method_len = 3,
                               .space_len = 9,
                               .name = {.slot = 1, .gen = 1},
                               .total = 2,
                               .n_keys = 1,
                               .keys = {{.addr = 4096, .key = 7, .len = 2}},
                               .read_name = {.slot = 2, .gen = 1},
                               .read_total = 5,
                               .n_read_keys = 1,
                               .read_keys = {{.addr = 8192, .key = 7, .len = 5}}};
    write_frame("call", &call);
    call.sums = true;
    write_frame("call-sums", &call);
    struct lieni_frame small = {
        .kind = LIENI_FRAME_REPLY, .call = lieni_call_id(1, 3, 1), .status = -5};
    write_frame("reply", &small);
    small.kind = LIENI_FRAME_CANCEL;
    small.call = lieni_call_id(1, 3, 0);
    write_frame("cancel", &small);
    small.kind = LIENI_FRAME_WRITTEN;
    write_frame("written", &small);
    write_frame("goaway", &(struct lieni_frame){.kind = LIENI_FRAME_GOAWAY});
    write_frame("heard", &(struct lieni_frame){.kind = LIENI_FRAME_HEARD});
    struct lieni_frame probe = {
        .kind = LIENI_FRAME_PROBE,
        .n_probes = 1,
        .probes = {{.id = 1, .call = lieni_call_id(1, 3, 1), .name = {.slot = 2, .gen = 1}}}};
    write_frame("probe", &probe);
    probe.kind = LIENI_FRAME_ANSWER;
    probe.probes[0].holds = true;
    write_frame("answer", &probe);
    uint8_t ops[LIENI_OP_SIZE];
    lieni_op_store(ops, &(lien_op){.src = 1, .dst = 2, .len = 3});
    write_frame("write", &(struct lieni_frame){.kind = LIENI_FRAME_WRITE,
                                               .call = lieni_call_id(1, 3, 1),
                                               .write = 1,
                                               .first = true,
                                               .last = true,
                                               .name = {.slot = 2, .gen = 1},
                                               .total = 5,
                                               .n_keys = 1,
                                               .keys = {{.addr = 4096, .key = 7, .len = 5}},
                                               .n_ops = 1,
                                               .ops = ops});
}

static void tokens(void)
{
    struct lieni_token_data data = {.kind = LIENI_TOKEN_HELD,
                                    .conn = 99,
                                    .name = {.slot = 1, .gen = 2},
                                    .total = 3,
                                    .n_keys = 2,
                                    .keys = {{.addr = 4096, .key = 7, .len = 1}, {.len = 2}}};
    lien_token token;
    lieni_token_encode(&data, &token);
    write_seed("token", "held", token.bytes, token.len);
    data.keys[0] = (struct lieni_key){.len = UINT64_MAX};
    data.keys[1] = (struct lieni_key){.len = 4};
    lieni_token_encode(&data, &token);
    write_seed("token", "wrapping-sum", token.bytes, token.len);
    data.keys[0] = (struct lieni_key){.addr = 4096, .key = 7, .len = 1};
    data.kind = LIENI_TOKEN_BORROWED;
    data.n_keys = 1;
    data.total = 1;
    lieni_token_encode(&data, &token);
    write_seed("token", "borrowed", token.bytes, token.len);
    data.sums = true;
    data.keys[0].sum = 1;
    lieni_token_encode(&data, &token);
    write_seed("token", "sums", token.bytes, token.len);
}

static void offers_and_handshakes(void)
{
    static const uint8_t seed[LIENI_SESSION] = {1, 2, 3};
    static struct lieni_handshake client, server;
    const struct lieni_offer offer = {.version_min = 1,
                                      .version_max = 1,
                                      .n_providers = 2,
                                      .providers = {"sim", "tcp"},
                                      .frame_max = 8192,
                                      .message_credits = 32,
                                      .control_credits = 32,
                                      .message_max = 1 << 20,
                                      .grants_max = 4096,
                                      .dead_ms = 5000};
    must(lieni_hs_start(&client, false, &offer, NULL, NULL));
    must(lieni_hs_start(&server, true, &offer, seed, NULL));
    write_seed("offer", "two", client.local_bytes, client.local_len);
    write_prefixed("handshake", "to-server", 1, client.out, client.out_len);
    (void)lieni_hs_input(&server, client.out, client.out_len);
    must(lieni_hs_place(&server, "127.0.0.1", 4711));
    write_prefixed("handshake", "to-client", 0, server.out, server.out_len);
    must(lieni_hs_start(&server, true, &offer, seed, NULL));
    lieni_hs_refuse(&server, LIEN_ELIMIT, "option half_open_max");
    write_prefixed("handshake", "refusal", 2, server.out, server.out_len);
    write_prefixed("handshake", "http2", 1, "PRI * HTTP/2.0\r\n\r\n", 18);
}

static void traces(void)
{
    static uint8_t bytes[16384];
    write_seed("trace", "sample", bytes, reader_sample(bytes, sizeof bytes));
}

static void blob(void)
{
    uint8_t bytes[BLOB_MESSAGE_MAX];
    const struct blob_ask ask = {.transfer = 3, .offset = 4096, .size = 10, .name = "name"};
    write_prefixed("blob", "ask", 0, bytes, proto_encode_ask(&ask, bytes));
    const struct blob_answer answer = {
        .status = BLOB_OK, .flags = BLOB_HAS_OBJECT, .size = 10, .mtime = 1};
    write_prefixed("blob", "answer", 1, bytes, proto_encode_answer(&answer, bytes));
    const struct blob_entry entry = {
        .name = "name", .size = 10, .mtime = 1, .flags = BLOB_HAS_OBJECT};
    size_t len = proto_entry_encode(&entry, bytes, sizeof bytes);
    len += proto_entry_encode(&entry, bytes + len, sizeof bytes - len);
    write_prefixed("blob", "entries", 2, bytes, len);
}

// Programs of fuzz_conn.c, which says what the bytes are: a frame is 0, kind - 1, how it is changed (0), and its fields.
#define CALL_TO_US      0, 6, 0, 0, 4, 16, 40, 40, 9, 0 // read space of 4096, write space of 4000
#define CALL_PURE_TO_US 0, 6, 0, 0, 4, 20, 40, 40, 9, 0
#define SERVE_READ      17, 0x00, 0x02 // whole, into 4096
#define SERVE_UNSURE    17, 0x20, 0x02
#define SERVE_WRITE     17, 0x08, 0x01
#define SERVE_REPLY     17, 4, 0
#define SERVE_BODY      17, 5, 0
#define SERVE_VERIFY    17, 3, 0
#define A_WHILE         11, 3
#define LONG            11, 11
#define ANSWER_YES      0, 10, 0, 0, 1
#define WRITTEN_OK      0, 12, 0, 0, 0, 0
#define RELEASE_LAST    0, 1, 0, 0, 0
#define RELEASE_TWO     0, 1, 0, 1, 0, 1
#define CALL_OUT        12, 0x5e // both spaces of 300 and more, a body
#define REPLY_OUT       0, 7, 0, 0, 4, 0, 0
#define REPLY_BODY      0, 7, 0, 9, 1, 4, 0, 0
#define WRITE_OUT       0, 11, 0, 5, 2, 4, 0, 0x10
#define PROBE_OUT       0, 9, 0, 0, 0
#define MSG_BODY        0, 0, 0, 9, 3, 9
#define WRITE_SEED(name, ...)                                                                      \
    write_seed("conn", name, (const uint8_t[]){__VA_ARGS__}, sizeof(const uint8_t[]){__VA_ARGS__})

static void programs(void)
{
    WRITE_SEED("served", 0x10, CALL_TO_US, SERVE_READ, A_WHILE, ANSWER_YES, SERVE_WRITE, A_WHILE,
               WRITTEN_OK, RELEASE_LAST, SERVE_REPLY, A_WHILE);
    WRITE_SEED("served-unsure", 0x1b, CALL_TO_US, SERVE_UNSURE, A_WHILE, SERVE_VERIFY, ANSWER_YES,
               SERVE_BODY, A_WHILE, RELEASE_LAST, A_WHILE);
    WRITE_SEED("served-pure", 0x16, CALL_PURE_TO_US, SERVE_READ, SERVE_WRITE, A_WHILE, SERVE_REPLY,
               LONG);
    WRITE_SEED("calls", 0x00, CALL_OUT, A_WHILE, PROBE_OUT, WRITE_OUT, A_WHILE, REPLY_OUT,
               RELEASE_TWO, A_WHILE);
    WRITE_SEED("calls-reply-body", 0x06, 12, 0x92, 12, 0x54, A_WHILE, REPLY_BODY, A_WHILE,
               RELEASE_TWO, LONG);
    WRITE_SEED("cancelled", 0x1f, CALL_TO_US, SERVE_READ, 0, 8, 0, 0, CALL_OUT, WRITE_OUT, 16, 0,
               A_WHILE, LONG);
    WRITE_SEED("messages", 0x10, MSG_BODY, 13, 0x07, 13, 0x00, MSG_BODY, A_WHILE, RELEASE_LAST, 59,
               0, 3, 0, LONG);
    WRITE_SEED("grants", 0x00, 14, 8, 14, 9, A_WHILE, 15, 0, 0, 9, 0x20, 0, A_WHILE, 10, 0,
               RELEASE_LAST, 16, 1, A_WHILE, RELEASE_TWO, LONG);
    WRITE_SEED("goaway", 0x10, CALL_TO_US, 0, 13, 0, 19, 3, A_WHILE, 0, 14, 0, CALL_OUT,
               SERVE_REPLY, 0, 5, 0, LONG);
    WRITE_SEED("asleep", 0x4b, 14, 8, CALL_OUT, 19, 7, 14, 8, CALL_OUT, LONG, LONG, 19, 7, LONG);
    WRITE_SEED("liar", 0x10, 0, 3, 0xe0, 200, 200, 1, MSG_BODY, 9, 16, 4, 0, 16, 0);
}

// Programs of fuzz_stream.c, which says what the bytes are.
#define A_RECV       0, 3, 0
#define A_SEND       0, 2, 4
#define READ_4K      0, 4, 1
#define READ_ALL     0, 4, 2
#define READ_BEYOND  0, 4, 3
#define READ_KEYLESS 0, 4, 0xc1, 9
#define POST_READ    10, 0x42
#define ANSWER_64    0, 5, 4, 12
#define REFUSAL      0, 6, 0
#define DRAIN        0x3b
#define THE_END      0x7f

static void carriers(void)
{
    static const char *const names[] = {"plain-client", "ws-client", "h2c-client",
                                        "plain-server", "ws-server", "h2c-server"};
    static const uint8_t program[] = {
        A_RECV,   A_SEND,   8,           0x23,         9,     0x34,      READ_4K,   DRAIN,
        READ_ALL, DRAIN,    READ_BEYOND, READ_KEYLESS, DRAIN, POST_READ, ANSWER_64, POST_READ,
        REFUSAL,  READ_ALL, 13,          READ_4K,      DRAIN, 13,        THE_END};
    // Frames of the carriers themselves: pings, settings, window, goodbye.
    static const uint8_t own[] = {7, 0x89, 0, 0, 3, 'a',  'b',   'c',    7, 0x8a, 0,    0,      0,
                                  7, 6,    0, 0, 8, 1,    2,     3,      4, 5,    6,    7,      8,
                                  7, 4,    0, 0, 0, 7,    4,     1,      0, 0,    7,    8,      0,
                                  1, 4,    0, 1, 0, 0,    DRAIN, A_SEND, 7, 3,    0,    1,      4,
                                  0, 0,    0, 8, 7, 0x88, 0,     0,      2, 3,    0xe8, THE_END};
    for (unsigned i = 0; i < 6; i++) {
        char name[64];
        uint8_t how = (uint8_t)(i % 3 + (i >= 3 ? 4 : 0) + 8 + 16);
        write_prefixed("stream", names[i], how, program, sizeof program);
        (void)snprintf(name, sizeof name, "%s-narrow", names[i]);
        write_prefixed("stream", name, how | 32, program, sizeof program);
        (void)snprintf(name, sizeof name, "%s-own", names[i]);
        write_prefixed("stream", name, how, own, sizeof own);
    }
}

// What opens a carrier, as bytes that can be changed.
static void openings(void)
{
    static const char *const texts[] = {
        "GET /lien HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n",
        "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Accept: ICX+Yqv66kxgM0FcWaLWlFLwTAI=\r\nSec-WebSocket-Protocol: "
        "lien\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"};
    for (unsigned i = 0; i < 3; i++) {
        uint8_t bytes[300];
        const size_t len = strlen(texts[i]);
        bytes[0] = 6 | 0x80; // even: below the carrier
        bytes[1] = (uint8_t)len;
        memcpy(bytes + 2, texts[i], len);
        memcpy(bytes + 2 + len, (const uint8_t[]){A_SEND, THE_END}, 4);
        static const char *const names[] = {"ws-request", "ws-answer", "h2c-preface"};
        write_prefixed("stream", names[i], (uint8_t[]){5, 1, 6}[i], bytes, 2 + len + 4);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus DIR\n");
        return 2;
    }
    root = argv[1];
    (void)mkdir(root, 0777);
    frames();
    call_frames();
    tokens();
    offers_and_handshakes();
    traces();
    programs();
    carriers();
    openings();
    blob();
    return 0;
}
