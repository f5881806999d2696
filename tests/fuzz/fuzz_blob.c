// SPDX-License-Identifier: Apache-2.0
//
// Fuzz target: what lien-blob decodes from its peer. The first byte chooses: an ask, an answer, or the entries of a list. What is accepted encodes again: an ask to
// the same bytes; in answers and entries text is tamed (error.h).

#include "tests/fuzz/fuzz.h"
#include "tools/lien-blob/proto.h"

static const char *ask(const uint8_t *bytes, size_t len)
{
    static struct blob_ask one;
    uint8_t again[BLOB_MESSAGE_MAX];
    if (!proto_decode_ask(bytes, len, &one))
        return NULL;
    const size_t n = proto_encode_ask(&one, again);
    return n == len && memcmp(again, bytes, n) == 0 ? NULL : "an ask encodes to other bytes";
}

static const char *answer(const uint8_t *bytes, size_t len)
{
    static struct blob_answer one, two;
    uint8_t again[BLOB_MESSAGE_MAX];
    memset(&one, 0, sizeof one);
    memset(&two, 0, sizeof two);
    if (!proto_decode_answer(bytes, len, &one))
        return NULL;
    const size_t n = proto_encode_answer(&one, again);
    if (n > len || !proto_decode_answer(again, n, &two))
        return "an answer does not decode again";
    return one.status == two.status && one.flags == two.flags && one.size == two.size &&
                   strcmp(one.text, two.text) == 0
               ? NULL
               : "an answer decodes to another";
}

static const char *entries(const uint8_t *bytes, size_t len)
{
    static struct blob_entry one, two;
    uint8_t again[BLOB_MESSAGE_MAX];
    while (len > 0) {
        const size_t used = proto_entry_decode(bytes, len, &one);
        if (used == 0)
            return NULL;
        if (used > len)
            return "an entry longer than its bytes";
        const size_t n = proto_entry_encode(&one, again, sizeof again);
        if (n == 0 || n > used || proto_entry_decode(again, n, &two) != n)
            return "an entry does not decode again";
        if (strcmp(one.name, two.name) != 0 || one.size != two.size || one.flags != two.flags)
            return "an entry decodes to another";
        bytes += used;
        len -= used;
    }
    return NULL;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    FUZZ_CHECK(data[0] % 3 == 0   ? ask(data + 1, size - 1)
               : data[0] % 3 == 1 ? answer(data + 1, size - 1)
                                  : entries(data + 1, size - 1));
    return 0;
}
