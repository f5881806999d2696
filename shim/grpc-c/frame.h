// SPDX-License-Identifier: Apache-2.0
//
// What the shims on both sides say to each other (docs/grpc.md): descriptors and escaped messages, metadata entries, arguments of the calls over Lien. Pure functions of bytes that
// trust no length.

#ifndef LIEN_GRPC_FRAME_H
#define LIEN_GRPC_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NONCE_BYTES   16
#define HEAD_BYTES    56
#define MAGIC_BYTES   8
#define FRAME_VERSION 1u
#define CALL_KEY      "lien-rpc"
#define OFFER_KEY     "lien-offer"

struct nonce {
    uint8_t bytes[NONCE_BYTES];
};

enum head_kind {
    HEAD_NONE = 0,
    HEAD_DESCRIPTOR = 1,
    HEAD_ESCAPED = 2
};

struct head {
    enum head_kind kind;
    bool from_server;
    uint32_t index; // of this call and direction
    struct nonce nonce;
    uint64_t call;
    uint64_t len; // of the message
    uint32_t token_len;
};

bool frame_magic(const uint8_t *bytes, size_t len);
void frame_put_head(const struct head *head, uint8_t out[HEAD_BYTES]);
// HEAD_NONE unless `bytes` is a head that fits a message of `total` bytes.
struct head frame_get_head(const uint8_t bytes[HEAD_BYTES], uint64_t total);

// lien-rpc: "1" (asks for an offer), or "1 NONCE LIMIT".
struct call_entry {
    bool linked;
    struct nonce nonce;
    uint64_t limit;
};
#define CALL_ENTRY_MAX 80
size_t frame_put_call(const struct call_entry *entry, char out[CALL_ENTRY_MAX]);
bool frame_get_call(const char *text, size_t len, struct call_entry *entry);

// lien-offer: "1 INSTANCE =CALL" (linked), or "1 INSTANCE ADDRESS", the latter host:port or ":port" (the host that the client knows).
struct offer_entry {
    uint64_t instance;
    bool linked;
    uint64_t call;    // the server's number of it
    char address[96]; // may be empty
};
#define OFFER_ENTRY_MAX 128
size_t frame_put_offer(const struct offer_entry *entry, char out[OFFER_ENTRY_MAX]);
bool frame_get_offer(const char *text, size_t len, struct offer_entry *entry);

// Arguments and answers over Lien.
#define LINK_BYTES   24 // version 4, zero 4, nonce 16
#define LINKED_BYTES 16 // instance 8, limit 8
#define OVER_BYTES   8
void frame_put_link(const struct nonce *nonce, uint8_t out[LINK_BYTES]);
bool frame_get_link(const uint8_t *bytes, size_t len, struct nonce *nonce);
void frame_put_u64(uint8_t *out, uint64_t value);
uint64_t frame_get_u64(const uint8_t *bytes);

#endif
