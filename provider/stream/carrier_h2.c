// SPDX-License-Identifier: Apache-2.0
//
// HTTP/2 by nghttp2: one request, POST /lien, whose body is the client's stream of bytes, and whose answer, 200, has the server's. Nothing else may be on the connection. nghttp2 is asked for
// bytes to write and given bytes that were read, so it queues nothing but what it owes itself: window updates, one at a time, and at most 16 answers to settings and pings, above which the peer floods
// us. What would make it queue resets (a second stream, whatever it calls invalid) ends the connection at once. Headers are bounded as they unfold, not as they are sent. What it made and the
// socket did not take stays in its own buffer; what it was given and the endpoint did not take is at most one read of the socket. Progress context.

#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider/stream/stream.h"

#define PATH        "/lien"
#define WINDOW      (1 << 20) // bytes that the peer may send ahead
#define RAW         16384u
#define NO_DATA_MAX 64u   // reads of the socket without data in a row before others have their turn
#define HEADERS_MAX 4096u // of the peer's, counted as SETTINGS_MAX_HEADER_LIST_SIZE is
#define MORE_MAX    8u    // CONTINUATION frames of the peer's
#define OWED_MAX    16u   // answers to settings and pings that wait

struct h2 {
    nghttp2_session *session;
    struct lieni_lane *lane;
    int32_t stream; // the one, once there
    bool answered;  // client: 200 came; server: the request came and was answered
    bool over;      // the peer ended its direction, or the stream
    const char *fault;
    uint32_t headers; // bytes so far
    unsigned more;    // CONTINUATION frames so far

    const struct iovec *iov; // of the write that runs, else NULL
    int n_iov;
    size_t iov_at, taken;
    bool waits; // nghttp2 was told that there is no data

    const uint8_t *out; // made by nghttp2, not yet written
    size_t out_left;

    uint8_t data[RAW]; // of the stream, not yet given
    size_t data_at, data_len;
};

static int bad(struct h2 *h2, const char *why)
{
    snprintf(h2->lane->why, sizeof h2->lane->why, "HTTP/2: %s", why);
    return LIEN_EPROTO;
}

// -- Callbacks -----------------------------------------------------------------------------------------------------------------------

// Bytes for a DATA frame: those of the write that runs.
static ssize_t pull(nghttp2_session *session, int32_t stream, uint8_t *buf, size_t len,
                    uint32_t *flags, nghttp2_data_source *source, void *user)
{
    (void)session;
    (void)stream;
    (void)flags;
    (void)source;
    struct h2 *h2 = user;
    size_t got = 0;
    while (got < len && h2->n_iov > 0) {
        size_t n = h2->iov->iov_len - h2->iov_at;
        n = n < len - got ? n : len - got;
        memcpy(buf + got, (const uint8_t *)h2->iov->iov_base + h2->iov_at, n);
        got += n;
        h2->iov_at += n;
        if (h2->iov_at == h2->iov->iov_len) {
            h2->iov++;
            h2->n_iov--;
            h2->iov_at = 0;
        }
    }
    h2->taken += got;
    h2->waits = got == 0;
    return got > 0 ? (ssize_t)got : NGHTTP2_ERR_DEFERRED;
}

static int faulty(struct h2 *h2, const char *what)
{
    h2->fault = what;
    return NGHTTP2_ERR_CALLBACK_FAILURE;
}

// What may not come is not even unpacked.
static int on_begin(nghttp2_session *session, const nghttp2_frame_hd *frame, void *user)
{
    (void)session;
    struct h2 *h2 = user;
    if (frame->type == NGHTTP2_HEADERS && h2->answered)
        return faulty(h2, "a second request, or trailers");
    if (frame->type == NGHTTP2_CONTINUATION && ++h2->more > MORE_MAX)
        return faulty(h2, "headers in more than 9 frames");
    if (frame->type == NGHTTP2_PUSH_PROMISE)
        return faulty(h2, "a push");
    return 0;
}

// nghttp2 would go on, after a reset of a stream; there is one stream.
static int on_invalid(nghttp2_session *session, const nghttp2_frame *frame, int error, void *user)
{
    (void)session;
    (void)frame;
    return faulty(user, nghttp2_strerror(error));
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data,
                   size_t len, void *user)
{
    (void)session;
    (void)flags;
    struct h2 *h2 = user;
    if (stream != h2->stream || !h2->answered)
        return faulty(h2, "data outside of the one stream");
    memcpy(h2->data + h2->data_len, data, len); // no more than was given, which is at most RAW
    h2->data_len += len;
    return 0;
}

static bool is(const uint8_t *text, size_t len, const char *want)
{
    return len == strlen(want) && memcmp(text, want, len) == 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
                     size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags,
                     void *user)
{
    (void)session;
    (void)frame;
    (void)flags;
    struct h2 *h2 = user;
    const char *want = NULL;
    size_t left = HEADERS_MAX - h2->headers;
    if (name_len > left || value_len > left || name_len + value_len + 32 > left)
        return faulty(h2, "headers of more than 4096 bytes");
    h2->headers += (uint32_t)(name_len + value_len + 32);
    if (is(name, name_len, ":method"))
        want = "POST";
    else if (is(name, name_len, ":path"))
        want = PATH;
    else if (is(name, name_len, ":status"))
        want = "200";
    if (!want || is(value, value_len, want))
        return 0;
    return faulty(h2, h2->lane->server ? "the request is not POST " PATH : "the answer is not 200");
}

static int answer(struct h2 *h2)
{
    static uint8_t name[] = ":status", value[] = "200";
    const nghttp2_nv headers[] = {
        {name, value, sizeof name - 1, sizeof value - 1, NGHTTP2_NV_FLAG_NONE}};
    const nghttp2_data_provider body = {.read_callback = pull};
    return nghttp2_submit_response(h2->session, h2->stream, headers, 1, &body);
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *frame, void *user)
{
    (void)session;
    struct h2 *h2 = user;
    if (frame->hd.type == NGHTTP2_HEADERS) {
        if (h2->stream != 0 && frame->hd.stream_id != h2->stream)
            return faulty(h2, "an answer to what was not asked");
        h2->stream = frame->hd.stream_id;
        h2->answered = true;
        if (h2->lane->server && answer(h2) != 0)
            return NGHTTP2_ERR_CALLBACK_FAILURE;
    }
    if ((frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
        (frame->hd.flags & NGHTTP2_FLAG_END_STREAM))
        h2->over = true;
    if (frame->hd.type == NGHTTP2_GOAWAY)
        h2->over = true;
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t stream, uint32_t code, void *user)
{
    (void)session;
    (void)stream;
    (void)code;
    ((struct h2 *)user)->over = true;
    return 0;
}

// -- Opening -------------------------------------------------------------------------------------------------------------------------

static nghttp2_nv header(const char *name, const char *value)
{
    union {
        const char *from;
        uint8_t *text; // copied from only
    } n = {.from = name}, v = {.from = value};
    return (nghttp2_nv){n.text, v.text, strlen(name), strlen(value), NGHTTP2_NV_FLAG_NONE};
}

static int ask(struct h2 *h2)
{
    const struct lieni_ep *ep = h2->lane->ep;
    char authority[288];
    bool v6 = strchr(ep->name, ':') != NULL;
    snprintf(authority, sizeof authority, "%s%s%s:%u", v6 ? "[" : "", ep->name, v6 ? "]" : "",
             ep->port);
    const nghttp2_nv headers[] = {header(":method", "POST"),
                                  header(":scheme", ep->prov->tls ? "https" : "http"),
                                  header(":authority", authority), header(":path", PATH),
                                  header("content-type", "application/octet-stream")};
    const nghttp2_data_provider body = {.read_callback = pull};
    h2->stream = nghttp2_submit_request(h2->session, NULL, headers,
                                        sizeof headers / sizeof headers[0], &body, NULL);
    return h2->stream > 0 ? 0 : -1;
}

static int make_session(struct h2 *h2)
{
    nghttp2_session_callbacks *callbacks = NULL;
    nghttp2_option *option = NULL;
    int rc = nghttp2_session_callbacks_new(&callbacks);
    if (rc == 0)
        rc = nghttp2_option_new(&option);
    if (rc == 0) {
        nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, on_begin);
        nghttp2_session_callbacks_set_on_invalid_frame_recv_callback(callbacks, on_invalid);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
        nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
        nghttp2_option_set_max_outbound_ack(option, OWED_MAX);
        nghttp2_option_set_no_closed_streams(option, 1);
        rc = h2->lane->server ? nghttp2_session_server_new2(&h2->session, callbacks, h2, option)
                              : nghttp2_session_client_new2(&h2->session, callbacks, h2, option);
    }
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    return rc;
}

static void h2_close(struct lieni_lane *lane)
{
    struct h2 *h2 = lane->carried;
    nghttp2_session_del(h2->session);
    free(h2);
    lane->carried = NULL;
}

static int h2_open(struct lieni_lane *lane)
{
    struct h2 *h2 = calloc(1, sizeof *h2);
    if (!h2)
        return LIEN_ENOMEM;
    lane->carried = h2;
    h2->lane = lane;
    const nghttp2_settings_entry settings[] = {
        {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, lane->server ? 1 : 0},
        {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW},
        {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HEADERS_MAX},
        {NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
    int rc = make_session(h2);
    if (rc == 0)
        rc = nghttp2_submit_settings(h2->session, NGHTTP2_FLAG_NONE, settings,
                                     lane->server ? 3 : 4);
    if (rc == 0)
        rc = nghttp2_session_set_local_window_size(h2->session, NGHTTP2_FLAG_NONE, 0, WINDOW);
    if (rc == 0 && !lane->server)
        rc = ask(h2);
    return rc == 0 ? 0 : LIEN_ENOMEM; // and closed by the lane
}

// -- Writing -------------------------------------------------------------------------------------------------------------------------

// Writes what nghttp2 has, and makes more of it. 0: it has none.
static int pump(struct h2 *h2)
{
    for (;;) {
        while (h2->out_left > 0) {
            union {
                const uint8_t *from;
                void *iov; // written from only
            } bytes = {.from = h2->out};
            struct iovec iov = {.iov_base = bytes.iov, .iov_len = h2->out_left};
            int64_t rc = lieni_pipe_write(&h2->lane->pipe, &iov, 1);
            if (rc < 0)
                return (int)rc;
            h2->out += rc;
            h2->out_left -= (size_t)rc;
        }
        ssize_t n = nghttp2_session_mem_send(h2->session, &h2->out);
        if (n < 0)
            return bad(h2, nghttp2_strerror((int)n));
        if (n == 0)
            return 0;
        h2->out_left = (size_t)n;
    }
}

static int64_t h2_write(struct lieni_lane *lane, const struct iovec *iov, int n)
{
    struct h2 *h2 = lane->carried;
    if (h2->over)
        return LIEN_ECLOSED;
    h2->iov = iov;
    h2->n_iov = n;
    h2->iov_at = h2->taken = 0;
    if (h2->waits)
        nghttp2_session_resume_data(h2->session, h2->stream);
    int rc = pump(h2);
    h2->iov = NULL;
    h2->n_iov = 0;
    if (h2->taken > 0)
        return (int64_t)h2->taken;
    // No room in the peer's window: its update comes as bytes to be read.
    return rc != 0 ? rc : LIEN_EAGAIN;
}

static int h2_flush(struct lieni_lane *lane)
{
    return pump(lane->carried);
}

static void h2_end(struct lieni_lane *lane)
{
    struct h2 *h2 = lane->carried;
    nghttp2_session_terminate_session(h2->session, NGHTTP2_NO_ERROR);
    pump(h2);
}

// -- Reading -------------------------------------------------------------------------------------------------------------------------

// Gives nghttp2 what the socket has. 0: something was read.
static int feed(struct h2 *h2)
{
    uint8_t raw[RAW];
    int64_t got = lieni_pipe_read(&h2->lane->pipe, raw, sizeof raw);
    if (got < 0)
        return (int)got;
    h2->data_at = h2->data_len = 0;
    ssize_t n = nghttp2_session_mem_recv(h2->session, raw, (size_t)got);
    if (h2->fault)
        return bad(h2, h2->fault);
    if (n < 0)
        return bad(h2, nghttp2_strerror((int)n));
    if (!nghttp2_session_want_read(h2->session))
        h2->over = true; // it said goodbye, for a fault of the peer's or in answer to its own
    // A window that opened, or what nghttp2 owes, may be written now.
    lieni_stream_touch(h2->lane->ep);
    return 0;
}

static int64_t h2_read(struct lieni_lane *lane, void *buf, size_t len)
{
    struct h2 *h2 = lane->carried;
    for (unsigned i = 0; h2->data_at == h2->data_len; i++) {
        if (h2->over)
            return LIEN_ECLOSED;
        if (i == NO_DATA_MAX) {
            lane->again = true;
            return LIEN_EAGAIN;
        }
        int rc = feed(h2);
        if (rc != 0)
            return rc;
    }
    size_t n = h2->data_len - h2->data_at;
    n = n < len ? n : len;
    memcpy(buf, h2->data + h2->data_at, n);
    h2->data_at += n;
    return (int64_t)n;
}

// The server: until the request is there. The client: until the answer to it is.
static int h2_ready(struct lieni_lane *lane)
{
    struct h2 *h2 = lane->carried;
    for (unsigned i = 0;; i++) {
        int rc = pump(h2);
        if (rc != 0 && rc != LIEN_EAGAIN)
            return rc;
        if (h2->answered)
            return 0;
        if (h2->over)
            return bad(h2, "the peer ended the stream before it began");
        if (i == NO_DATA_MAX) {
            lane->again = true;
            return LIEN_EAGAIN;
        }
        rc = feed(h2);
        if (rc != 0)
            return rc;
    }
}

const struct lieni_carrier lieni_carrier_h2 = {
    .alpn = "h2",
    .open = h2_open,
    .ready = h2_ready,
    .read = h2_read,
    .write = h2_write,
    .flush = h2_flush,
    .end = h2_end,
    .close = h2_close,
};
