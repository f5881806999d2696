// SPDX-License-Identifier: Apache-2.0
//
// The offer of the bootstrap as bytes (docs/wire.md, "OFFER"). Pure functions, no state, no lock. The ranges of an offer are checked in one place, the decoder: the handshake
// passes its own offer through it as well. The output is written only once all is checked.

#include <string.h>

#include "core/bytes.h"
#include "core/handshake.h"

#define NAME_BYTES 32u

// Offsets in the offer. The first two never move, in any version.
enum {
    AT_VERSION_MIN = 0,
    AT_VERSION_MAX = 2,
    AT_NONCE = 4,
    AT_FRAME_MAX = 36,
    AT_MESSAGE_CREDITS = 40,
    AT_CONTROL_CREDITS = 42,
    AT_MESSAGE_MAX = 44,
    AT_GRANTS_MAX = 52,
    AT_READ_DEPTH = 56,
    AT_DEAD_MS = 60,
    AT_N_PROVIDERS = 64,
    AT_KEYED = 65,
    AT_CALL_CREDITS = 66,
    AT_ZERO = 68,
    AT_PROVIDERS = 72
};

_Static_assert(AT_PROVIDERS + LIENI_PROVIDERS_MAX * NAME_BYTES <= LIENI_OFFER_MAX,
               "the largest offer fits");
_Static_assert(sizeof((struct lieni_offer *)0)->providers[0] == NAME_BYTES,
               "a name in the offer is a name in the struct");

int lieni_offer_encode(const struct lieni_offer *offer, uint8_t *bytes, size_t size, size_t *len)
{
    if (offer->n_providers > LIENI_PROVIDERS_MAX)
        return LIEN_EINVAL;
    const size_t need = AT_PROVIDERS + offer->n_providers * NAME_BYTES;
    if (need > size)
        return LIEN_EMSGSIZE;
    memset(bytes, 0, need);
    lieni_put16(bytes + AT_VERSION_MIN, offer->version_min);
    lieni_put16(bytes + AT_VERSION_MAX, offer->version_max);
    memcpy(bytes + AT_NONCE, offer->nonce, sizeof offer->nonce);
    lieni_put32(bytes + AT_FRAME_MAX, offer->frame_max);
    lieni_put16(bytes + AT_MESSAGE_CREDITS, offer->message_credits);
    lieni_put16(bytes + AT_CONTROL_CREDITS, offer->control_credits);
    lieni_put64(bytes + AT_MESSAGE_MAX, offer->message_max);
    lieni_put32(bytes + AT_GRANTS_MAX, offer->grants_max);
    lieni_put32(bytes + AT_READ_DEPTH, offer->read_depth);
    lieni_put32(bytes + AT_DEAD_MS, offer->dead_ms);
    bytes[AT_N_PROVIDERS] = (uint8_t)offer->n_providers;
    bytes[AT_KEYED] = offer->keyed;
    lieni_put16(bytes + AT_CALL_CREDITS, offer->call_credits);
    for (uint32_t i = 0; i < offer->n_providers; i++) {
        // What follows the name's end in the struct is not the peer's business.
        const char *name = offer->providers[i];
        memcpy(bytes + AT_PROVIDERS + i * NAME_BYTES, name, strnlen(name, NAME_BYTES));
    }
    *len = need;
    return 0;
}

// NULL, or what is wrong with the numbers.
static const char *wrong_number(const struct lieni_offer *offer)
{
    if (offer->version_min < 1 || offer->version_min > offer->version_max)
        return "offer version_min is not 1..version_max";
    if (offer->frame_max < 4096 || offer->frame_max > 65536)
        return "offer frame_max is not 4096..65536";
    if (offer->message_credits < 1 || offer->message_credits > 4096)
        return "offer message_credits is not 1..4096";
    if (offer->control_credits < 2 || offer->control_credits > 4096)
        return "offer control_credits is not 2..4096";
    if (offer->call_credits > LIENI_CALL_SLOTS_MAX)
        return "offer call_credits is above 4096";
    if (offer->message_max > UINT64_C(1) << 32)
        return "offer message_max is above 4 GiB";
    if (offer->grants_max < 1 || offer->grants_max > 1048576)
        return "offer grants_max is not 1..1048576";
    if (offer->dead_ms != 0 && (offer->dead_ms < 20 || offer->dead_ms > 3600000))
        return "offer dead_ms is neither 0 nor 20..3600000";
    return NULL;
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

static const char *wrong_name(const uint8_t *bytes)
{
    size_t len = 0;
    while (len < NAME_BYTES && bytes[len] != 0) {
        if (!name_char((char)bytes[len]))
            return "offer provider name has a character outside a-z 0-9 _ -";
        len++;
    }
    if (len == 0)
        return "offer provider name is empty";
    if (len == NAME_BYTES)
        return "offer provider name is longer than 31 characters";
    if (!lieni_all_zero(bytes + len, NAME_BYTES - len))
        return "offer provider name is not padded with zeros";
    return NULL;
}

static const char *wrong_names(const uint8_t *names, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const char *wrong = wrong_name(names + i * NAME_BYTES);
        if (wrong != NULL)
            return wrong;
        for (uint32_t j = 0; j < i; j++)
            if (memcmp(names + i * NAME_BYTES, names + j * NAME_BYTES, NAME_BYTES) == 0)
                return "offer names a provider twice";
    }
    return NULL;
}

static const char *wrong_layout(const uint8_t *bytes, size_t len)
{
    if (len < AT_PROVIDERS)
        return "offer is shorter than its 72 byte fixed part";
    if (len > LIENI_OFFER_MAX)
        return "offer is longer than 4096 bytes";
    const uint32_t n = bytes[AT_N_PROVIDERS];
    if (n < 1 || n > LIENI_PROVIDERS_MAX)
        return "offer providers is not 1..16";
    const size_t known = AT_PROVIDERS + n * NAME_BYTES;
    if (len < known)
        return "offer providers is above what its length holds";
    // A peer that knows a later version may say more; what, is that version's matter.
    if (len > known && lieni_get16(bytes + AT_VERSION_MAX) <= LIENI_WIRE_VERSION)
        return "bytes after the offer's last provider";
    if (bytes[AT_KEYED] > 1)
        return "offer keyed is neither 0 nor 1";
    if (!lieni_all_zero(bytes + AT_ZERO, AT_PROVIDERS - AT_ZERO))
        return "offer reserved bytes are not 0";
    return wrong_names(bytes + AT_PROVIDERS, n);
}

int lieni_offer_decode(const uint8_t *bytes, size_t len, struct lieni_offer *offer,
                       const char **why)
{
    const char *wrong = wrong_layout(bytes, len);
    if (wrong != NULL) {
        *why = wrong;
        return LIEN_EPROTO;
    }
    struct lieni_offer read = {
        .version_min = lieni_get16(bytes + AT_VERSION_MIN),
        .version_max = lieni_get16(bytes + AT_VERSION_MAX),
        .n_providers = bytes[AT_N_PROVIDERS],
        .keyed = bytes[AT_KEYED] == 1,
        .frame_max = lieni_get32(bytes + AT_FRAME_MAX),
        .message_credits = lieni_get16(bytes + AT_MESSAGE_CREDITS),
        .control_credits = lieni_get16(bytes + AT_CONTROL_CREDITS),
        .call_credits = lieni_get16(bytes + AT_CALL_CREDITS),
        .message_max = lieni_get64(bytes + AT_MESSAGE_MAX),
        .grants_max = lieni_get32(bytes + AT_GRANTS_MAX),
        .read_depth = lieni_get32(bytes + AT_READ_DEPTH),
        .dead_ms = lieni_get32(bytes + AT_DEAD_MS),
    };
    wrong = wrong_number(&read);
    if (wrong != NULL) {
        *why = wrong;
        return LIEN_EPROTO;
    }
    memcpy(read.nonce, bytes + AT_NONCE, sizeof read.nonce);
    memcpy(read.providers, bytes + AT_PROVIDERS, read.n_providers * NAME_BYTES);
    *offer = read;
    return 0;
}
