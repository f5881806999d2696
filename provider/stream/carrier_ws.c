// SPDX-License-Identifier: Apache-2.0
//
// WebSocket (RFC 6455). The payloads of binary messages, one after the other, are the stream; where one ends and the next begins means nothing. libwslay does the framing and masking, by
// callbacks that move as much as goes, and queues nothing; the opening (an HTTP request and its answer) is here. A batch of ours is one message.
//
// Of pings that came while the socket was full the last is answered, as the RFC allows, so a peer that pings and does not read costs 125 bytes. Text, extensions, a wrong masking and a close
// end the connection. Progress context.

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <wslay/wslay.h>

#include "provider/stream/stream.h"

#define GUID        "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
#define PATH        "/lien"
#define KEY         24u   // base64 of 16 bytes
#define ACCEPT      28u   // base64 of a SHA-1
#define HTTP_MAX    8192u // bytes of the peer's HTTP head
#define CONTROL     125u
#define NO_DATA_MAX 64u // frames without data in a row before others have their turn

enum ws_stage {
    WS_SAY,   // our HTTP head is being written (client: first; server: last)
    WS_AWAIT, // the peer's is awaited
    WS_OPEN
};

struct ws {
    wslay_frame_context_ptr frames;
    struct lieni_lane *lane;
    enum ws_stage stage;
    int error; // what the pipe said last in a callback

    char say[768]; // our HTTP head
    size_t say_at, say_len;
    char key[KEY + 1]; // the client's

    bool in_message; // continuations follow
    uint8_t opcode;  // of the frame that is being read
    uint64_t frame_left;
    const uint8_t *data; // of it, in libwslay's buffer
    size_t data_left;
    uint8_t control[CONTROL];
    size_t control_len;

    uint64_t out_left; // of the frame that is being written
    bool pong_due;     // pong[] waits
    uint8_t pong[CONTROL];
    size_t pong_len;
    bool reply; // a control frame is half written
    uint8_t reply_data[CONTROL];
    size_t reply_at, reply_len;
    uint8_t reply_code;

    size_t raw_at, raw_len; // read ahead; the HTTP head while opening
    uint8_t raw[32768];
};

static int bad(struct lieni_lane *lane, const char *why)
{
    snprintf(lane->why, sizeof lane->why, "WebSocket: %s", why);
    return LIEN_EPROTO;
}

// -- Callbacks -----------------------------------------------------------------------------------------------------------------------

static ssize_t give(const uint8_t *data, size_t len, int flags, void *user)
{
    (void)flags;
    struct ws *ws = user;
    union {
        const uint8_t *from;
        void *iov; // written from only
    } bytes = {.from = data};
    struct iovec iov = {.iov_base = bytes.iov, .iov_len = len};
    int64_t rc = lieni_pipe_write(&ws->lane->pipe, &iov, 1);
    ws->error = rc < 0 ? (int)rc : 0;
    return rc < 0 ? -1 : (ssize_t)rc;
}

static ssize_t take(uint8_t *buf, size_t len, int flags, void *user)
{
    (void)flags;
    struct ws *ws = user;
    if (ws->raw_at == ws->raw_len) {
        int64_t rc = lieni_pipe_read(&ws->lane->pipe, ws->raw, sizeof ws->raw);
        ws->error = rc < 0 ? (int)rc : 0;
        if (rc < 0)
            return -1;
        ws->raw_at = 0;
        ws->raw_len = (size_t)rc;
    }
    size_t n = ws->raw_len - ws->raw_at < len ? ws->raw_len - ws->raw_at : len;
    memcpy(buf, ws->raw + ws->raw_at, n);
    ws->raw_at += n;
    return (ssize_t)n;
}

static int mask(uint8_t *buf, size_t len, void *user)
{
    const struct ws *ws = user;
    const struct lieni_env *env = ws->lane->ep->prov->env;
    env->random(env->self, buf, len);
    return 0;
}

// -- Opening -------------------------------------------------------------------------------------------------------------------------

static void accept_of(const char *key, char out[ACCEPT + 1])
{
    unsigned char text[KEY + sizeof GUID], hash[EVP_MAX_MD_SIZE];
    unsigned int len = 0;
    memcpy(text, key, KEY);
    memcpy(text + KEY, GUID, sizeof GUID - 1);
    EVP_Digest(text, KEY + sizeof GUID - 1, hash, &len, EVP_sha1(), NULL);
    EVP_EncodeBlock((unsigned char *)out, hash, (int)len);
}

static void say_request(struct ws *ws)
{
    const struct lieni_ep *ep = ws->lane->ep;
    const struct lieni_env *env = ep->prov->env;
    bool v6 = strchr(ep->name, ':') != NULL;
    unsigned char random[16];
    env->random(env->self, random, sizeof random);
    EVP_EncodeBlock((unsigned char *)ws->key, random, sizeof random);
    ws->say_len = (size_t)snprintf(
        ws->say, sizeof ws->say,
        "GET " PATH " HTTP/1.1\r\nHost: %s%s%s:%u\r\nUpgrade: websocket\r\n"
        "Connection: Upgrade\r\nSec-WebSocket-Key: %s\r\n"
        "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: lien\r\n\r\n",
        v6 ? "[" : "", ep->name, v6 ? "]" : "", ep->port, ws->key);
}

static void say_answer(struct ws *ws, bool named)
{
    char accept[ACCEPT + 1];
    accept_of(ws->key, accept);
    ws->say_len = (size_t)snprintf(
        ws->say, sizeof ws->say,
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Accept: %s\r\n%s\r\n",
        accept, named ? "Sec-WebSocket-Protocol: lien\r\n" : "");
}

// The value of the header in a head that ends in a NUL, or NULL; `value` gets it without blanks at its ends. A second one of the name makes it "".
static const char *header(const char *head, const char *name, char *value, size_t size)
{
    size_t len = strlen(name);
    bool found = false;
    for (const char *line = strstr(head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        const char *at = line + 2;
        if (strncasecmp(at, name, len) != 0 || at[len] != ':')
            continue;
        at += len + 1;
        at += strspn(at, " \t");
        size_t n = strcspn(at, "\r");
        while (n > 0 && (at[n - 1] == ' ' || at[n - 1] == '\t'))
            n--;
        snprintf(value, size, "%.*s", found || n >= size ? 0 : (int)n, at);
        found = true;
    }
    return found ? value : NULL;
}

// Whether the header's list has the word.
static bool lists(const char *head, const char *name, const char *word)
{
    char value[256];
    const char *at = header(head, name, value, sizeof value);
    size_t len = strlen(word);
    while (at && *at) {
        at += strspn(at, ", \t");
        size_t n = strcspn(at, ", \t");
        if (n == len && strncasecmp(at, word, len) == 0)
            return true;
        at += n;
    }
    return false;
}

static int judge_request(struct ws *ws, const char *head)
{
    static const char line[] = "GET " PATH " HTTP/1.1\r\n";
    char value[64];
    if (strncmp(head, line, sizeof line - 1) != 0)
        return bad(ws->lane, "the first line is not GET " PATH " HTTP/1.1");
    if (!lists(head, "Upgrade", "websocket") || !lists(head, "Connection", "Upgrade"))
        return bad(ws->lane, "no upgrade to websocket is asked for");
    if (!header(head, "Sec-WebSocket-Version", value, sizeof value) || strcmp(value, "13") != 0)
        return bad(ws->lane, "the version is not 13");
    if (!header(head, "Sec-WebSocket-Key", value, sizeof value) || strlen(value) != KEY)
        return bad(ws->lane, "Sec-WebSocket-Key is not one of 24 characters");
    memcpy(ws->key, value, KEY + 1);
    say_answer(ws, lists(head, "Sec-WebSocket-Protocol", "lien"));
    ws->stage = WS_SAY;
    return 0;
}

static int judge_answer(struct ws *ws, const char *head)
{
    static const char line[] = "HTTP/1.1 101";
    char value[64], accept[ACCEPT + 1];
    accept_of(ws->key, accept);
    if (strncmp(head, line, sizeof line - 1) != 0)
        return bad(ws->lane, "the answer is not HTTP/1.1 101");
    if (!lists(head, "Upgrade", "websocket") || !lists(head, "Connection", "Upgrade"))
        return bad(ws->lane, "the answer is no upgrade to websocket");
    if (!header(head, "Sec-WebSocket-Accept", value, sizeof value) || strcmp(value, accept) != 0)
        return bad(ws->lane, "Sec-WebSocket-Accept is wrong");
    if (header(head, "Sec-WebSocket-Extensions", value, sizeof value))
        return bad(ws->lane, "the answer has an extension that was not asked for");
    if (!header(head, "Sec-WebSocket-Protocol", value, sizeof value) || strcmp(value, "lien") != 0)
        return bad(ws->lane, "the answer's protocol is not lien");
    ws->stage = WS_OPEN;
    return 0;
}

static int await(struct ws *ws)
{
    void *end = NULL;
    while (!end) {
        if (ws->raw_len >= HTTP_MAX)
            return bad(ws->lane, "the HTTP head is longer than 8192 bytes");
        int64_t rc = lieni_pipe_read(&ws->lane->pipe, ws->raw + ws->raw_len,
                                     HTTP_MAX - ws->raw_len);
        if (rc < 0)
            return (int)rc;
        size_t from = ws->raw_len < 3 ? 0 : ws->raw_len - 3; // the end may have begun there
        ws->raw_len += (size_t)rc;
        // Who speaks no HTTP is not waited for.
        if (ws->raw[0] != (ws->lane->server ? 'G' : 'H'))
            return bad(ws->lane, "the first byte is not HTTP's");
        end = memmem(ws->raw + from, ws->raw_len - from, "\r\n\r\n", 4);
    }
    size_t len = (size_t)((uint8_t *)end - ws->raw) + 2; // with the last line's end
    char head[HTTP_MAX + 1];
    memcpy(head, ws->raw, len);
    head[len] = '\0';
    if (strlen(head) != len)
        return bad(ws->lane, "a NUL in the HTTP head");
    ws->raw_at = len + 2;
    return ws->lane->server ? judge_request(ws, head) : judge_answer(ws, head);
}

static int say(struct ws *ws)
{
    while (ws->say_at < ws->say_len) {
        ssize_t n = give((const uint8_t *)ws->say + ws->say_at, ws->say_len - ws->say_at, 0, ws);
        if (n < 0)
            return ws->error;
        ws->say_at += (size_t)n;
    }
    ws->stage = ws->lane->server ? WS_OPEN : WS_AWAIT;
    return 0;
}

static int ws_open(struct lieni_lane *lane)
{
    static const struct wslay_frame_callbacks callbacks = {give, take, mask};
    struct ws *ws = calloc(1, sizeof *ws);
    if (!ws)
        return LIEN_ENOMEM;
    ws->lane = lane;
    if (wslay_frame_context_init(&ws->frames, &callbacks, ws) != 0) {
        free(ws);
        return LIEN_ENOMEM;
    }
    ws->stage = lane->server ? WS_AWAIT : WS_SAY;
    if (!lane->server)
        say_request(ws);
    lane->carried = ws;
    return 0;
}

static int ws_ready(struct lieni_lane *lane)
{
    struct ws *ws = lane->carried;
    int rc = 0;
    while (rc == 0 && ws->stage != WS_OPEN)
        rc = ws->stage == WS_SAY ? say(ws) : await(ws);
    return rc;
}

static void ws_close(struct lieni_lane *lane)
{
    struct ws *ws = lane->carried;
    wslay_frame_context_free(ws->frames);
    free(ws);
    lane->carried = NULL;
}

// -- Reading -------------------------------------------------------------------------------------------------------------------------

static int judge_frame(struct ws *ws, const struct wslay_frame_iocb *iocb)
{
    bool control = (iocb->opcode & 8) != 0;
    if (iocb->rsv != 0)
        return bad(ws->lane, "a reserved bit is set");
    if ((iocb->mask != 0) != ws->lane->server)
        return bad(ws->lane, ws->lane->server ? "a frame of a client without mask"
                                              : "a frame of a server with mask");
    if (control && (iocb->payload_length > CONTROL || !iocb->fin))
        return bad(ws->lane, "a control frame in parts, or of more than 125 bytes");
    switch (iocb->opcode) { // a number of the peer's
    case WSLAY_BINARY_FRAME:
    case WSLAY_CONTINUATION_FRAME:
        if ((iocb->opcode == WSLAY_CONTINUATION_FRAME) != ws->in_message)
            return bad(ws->lane, "a continuation of nothing, or none where one is due");
        ws->in_message = !iocb->fin;
        break;
    case WSLAY_CONNECTION_CLOSE:
    case WSLAY_PING:
    case WSLAY_PONG:
        ws->control_len = 0;
        break;
    default:
        return bad(ws->lane, "a frame that is neither binary nor of control");
    }
    ws->opcode = iocb->opcode;
    ws->frame_left = iocb->payload_length;
    return 0;
}

// A control frame is complete.
static int control(struct ws *ws)
{
    if (ws->opcode == WSLAY_CONNECTION_CLOSE)
        return LIEN_ECLOSED;
    if (ws->opcode == WSLAY_PING) {
        memcpy(ws->pong, ws->control, ws->control_len);
        ws->pong_len = ws->control_len;
        ws->pong_due = true;
    }
    return 0;
}

// Some payload, or a whole frame without any. 0: ws->data may have bytes.
static int next_data(struct ws *ws)
{
    struct wslay_frame_iocb iocb = {0};
    bool begins = ws->frame_left == 0;
    ws->error = 0;
    ssize_t n = wslay_frame_recv(ws->frames, &iocb);
    if (n == WSLAY_ERR_WANT_READ)
        return ws->error ? ws->error : LIEN_EAGAIN;
    if (n < 0)
        return bad(ws->lane, "a frame that breaks the protocol");
    int rc = begins ? judge_frame(ws, &iocb) : 0;
    if (rc != 0)
        return rc;
    size_t len = (size_t)n;
    if (len > ws->frame_left)
        return bad(ws->lane, "a frame longer than it said");
    ws->frame_left -= len;
    if ((ws->opcode & 8) == 0) {
        ws->data = iocb.data;
        ws->data_left = len;
        return 0;
    }
    memcpy(ws->control + ws->control_len, iocb.data, len); // frame_left bounds it
    ws->control_len += len;
    return ws->frame_left == 0 ? control(ws) : 0;
}

static int64_t ws_read(struct lieni_lane *lane, void *buf, size_t len)
{
    struct ws *ws = lane->carried;
    for (unsigned i = 0; ws->data_left == 0; i++) {
        if (i == NO_DATA_MAX) {
            lane->again = true;
            return LIEN_EAGAIN;
        }
        int rc = next_data(ws);
        if (rc != 0)
            return rc;
    }
    size_t n = ws->data_left < len ? ws->data_left : len;
    memcpy(buf, ws->data, n);
    ws->data += n;
    ws->data_left -= n;
    return (int64_t)n;
}

// -- Writing -------------------------------------------------------------------------------------------------------------------------

static int wrote(struct ws *ws, ssize_t n)
{
    if (n == WSLAY_ERR_WANT_WRITE)
        return ws->error ? ws->error : LIEN_EAGAIN;
    return n < 0 ? bad(ws->lane, "libwslay refused a frame") : 0;
}

static void begin_reply(struct ws *ws, uint8_t code, const uint8_t *data, size_t len)
{
    if (len > 0)
        memcpy(ws->reply_data, data, len);
    ws->reply = true;
    ws->reply_code = code;
    ws->reply_at = 0;
    ws->reply_len = len;
}

// Control frames that are due, between frames. 0: none is left.
static int replies(struct ws *ws)
{
    if (ws->out_left > 0)
        return 0; // in the middle of a frame: after it
    if (!ws->reply && ws->pong_due) {
        begin_reply(ws, WSLAY_PONG, ws->pong, ws->pong_len);
        ws->pong_due = false;
    }
    while (ws->reply) {
        struct wslay_frame_iocb iocb = {.fin = 1,
                                        .opcode = ws->reply_code,
                                        .mask = !ws->lane->server,
                                        .payload_length = ws->reply_len,
                                        .data = ws->reply_data + ws->reply_at,
                                        .data_length = ws->reply_len - ws->reply_at};
        ws->error = 0;
        ssize_t n = wslay_frame_send(ws->frames, &iocb);
        int rc = wrote(ws, n);
        if (rc != 0)
            return rc;
        ws->reply_at += (size_t)n;
        ws->reply = ws->reply_at < ws->reply_len;
    }
    return 0;
}

static int64_t ws_write(struct lieni_lane *lane, const struct iovec *iov, int n)
{
    struct ws *ws = lane->carried;
    int rc = replies(ws);
    if (rc != 0)
        return rc;
    size_t all = 0, taken = 0;
    for (int i = 0; i < n; i++)
        all += iov[i].iov_len;
    bool begins = ws->out_left == 0;
    if (begins)
        ws->out_left = all;
    struct wslay_frame_iocb iocb = {.fin = 1,
                                    .opcode = WSLAY_BINARY_FRAME,
                                    .mask = !lane->server,
                                    .payload_length = ws->out_left};
    for (int i = 0; i < n;) {
        size_t at = 0;
        while (at < iov[i].iov_len) {
            iocb.data = (const uint8_t *)iov[i].iov_base + at;
            iocb.data_length = iov[i].iov_len - at;
            ws->error = 0;
            ssize_t sent = wslay_frame_send(ws->frames, &iocb);
            rc = wrote(ws, sent);
            if (rc != 0)
                return taken > 0 && rc == LIEN_EAGAIN ? (int64_t)taken : rc;
            at += (size_t)sent;
            taken += (size_t)sent;
            ws->out_left -= (size_t)sent;
        }
        i++;
    }
    return (int64_t)taken;
}

static int ws_flush(struct lieni_lane *lane)
{
    return replies(lane->carried);
}

static void ws_end(struct lieni_lane *lane)
{
    static const uint8_t normal[2] = {WSLAY_CODE_NORMAL_CLOSURE >> 8,
                                      WSLAY_CODE_NORMAL_CLOSURE & 0xff};
    struct ws *ws = lane->carried;
    if (ws->out_left > 0 || ws->reply)
        return; // in the middle of a frame there is nothing to say
    begin_reply(ws, WSLAY_CONNECTION_CLOSE, normal, sizeof normal);
    replies(ws);
}

const struct lieni_carrier lieni_carrier_ws = {
    .alpn = "http/1.1",
    .open = ws_open,
    .ready = ws_ready,
    .read = ws_read,
    .write = ws_write,
    .flush = ws_flush,
    .end = ws_end,
    .close = ws_close,
};
