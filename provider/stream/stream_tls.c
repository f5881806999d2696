// SPDX-License-Identifier: Apache-2.0
//
// TLS below a carrier, by OpenSSL: 1.2 at least, 1.3 where both have it, and the carrier's protocol agreed on by ALPN or no connection. A client checks the chain against tls_ca or the
// system's store, and the name against tls_name or the host that was dialled; there is no way to leave that out. A server shows tls_cert; clients are known by the private data, and by the
// pre-shared key where there is one.
//
// The socket is read and written here, not by OpenSSL's own BIO, which would raise SIGPIPE. Records are encrypted from where the bytes are into OpenSSL's buffer: once a write was refused
// it must be repeated with the same bytes, which the carriers do. Progress context, but for open.

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "provider/stream/stream.h"

struct lieni_tls {
    SSL_CTX *client, *server; // server: NULL without certificate and key
    BIO_METHOD *method;
    char name[256]; // tls_name
};

struct lieni_tls_end {
    SSL *ssl;
    bool broken; // an error came: not even a goodbye may be said
};

// -- The socket, as OpenSSL wants it -------------------------------------------------------------------------------------------------

static int bio_write(BIO *bio, const char *data, int len)
{
    struct lieni_pipe *pipe = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (!pipe->can_write) {
        BIO_set_retry_write(bio);
        return -1;
    }
    ssize_t n;
    do
        n = send(pipe->fd, data, (size_t)len, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        pipe->can_write = false;
        BIO_set_retry_write(bio);
    } else if (n < 0) {
        pipe->error = errno;
    }
    return (int)n;
}

static int bio_read(BIO *bio, char *data, int len)
{
    struct lieni_pipe *pipe = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (!pipe->can_read) {
        BIO_set_retry_read(bio);
        return -1;
    }
    ssize_t n;
    do
        n = recv(pipe->fd, data, (size_t)len, 0);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) {
        pipe->can_read = false;
        BIO_set_retry_read(bio);
    } else if (n < 0) {
        pipe->error = errno;
    }
    return (int)n;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH; // nothing is kept here
}

// -- Certificates --------------------------------------------------------------------------------------------------------------------

// What OpenSSL did not like, the first of it; its queue is emptied.
static const char *reason(char *text, size_t size)
{
    unsigned long code = ERR_get_error();
    if (code == 0)
        snprintf(text, size, "no reason given");
    else
        ERR_error_string_n(code, text, size);
    ERR_clear_error();
    return text;
}

static int refuse(struct lieni_prov *prov, const char *option, const char *value)
{
    char text[160];
    return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_ENOPROVIDER, "option %s '%s': %s", option,
                            value, reason(text, sizeof text));
}

static const char *alpn_of(const struct lieni_prov *prov)
{
    return prov->kind->carrier->alpn;
}

static int choose_alpn(SSL *ssl, const unsigned char **out, unsigned char *out_len,
                       const unsigned char *in, unsigned in_len, void *arg)
{
    (void)ssl;
    const char *want = arg;
    size_t len = strlen(want);
    for (unsigned at = 0; at < in_len; at += 1u + in[at]) {
        if (in[at] == len && at + 1 + len <= in_len && memcmp(in + at + 1, want, len) == 0) {
            *out = in + at + 1;
            *out_len = (unsigned char)len;
            return SSL_TLSEXT_ERR_OK;
        }
    }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

// -- What was wrong with a certificate -----------------------------------------------------------------------------------------------

static void print_time(const ASN1_TIME *time, char *text, size_t size)
{
    BIO *bio = BIO_new(BIO_s_mem());
    int len = bio && time && ASN1_TIME_print(bio, time) ? BIO_read(bio, text, (int)size - 1) : 0;
    text[len > 0 ? len : 0] = '\0';
    BIO_free(bio);
}

// More of it than OpenSSL's own words: the date, the issuer, the name. What comes from the certificate is printed with its control characters escaped.
static void detail(X509_STORE_CTX *store, int error, const char *name, char *text, size_t size)
{
    const X509 *cert = X509_STORE_CTX_get_current_cert(store);
    char value[128] = "";
    text[0] = '\0';
    switch (error) { // a number of OpenSSL's
    case X509_V_ERR_CERT_HAS_EXPIRED:
        print_time(cert ? X509_get0_notAfter(cert) : NULL, value, sizeof value);
        snprintf(text, size, ": it ended at %s", value);
        break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        print_time(cert ? X509_get0_notBefore(cert) : NULL, value, sizeof value);
        snprintf(text, size, ": it begins at %s", value);
        break;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        snprintf(text, size, ": it is not for '%.150s'", name);
        break;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
        if (cert)
            X509_NAME_oneline(X509_get_issuer_name(cert), value, sizeof value);
        snprintf(text, size, ": its issuer '%.120s' is not among those of tls_ca", value);
        break;
    default:
        break;
    }
}

// OpenSSL asks whether a fault of the server's chain is to be overlooked. Never; but here it is still known.
static int note_fault(int ok, X509_STORE_CTX *store)
{
    if (ok)
        return ok;
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct lieni_lane *lane = SSL_get_app_data(ssl);
    const char *set = lane->ep->prov->tls->name;
    int error = X509_STORE_CTX_get_error(store);
    char more[200];
    detail(store, error, set[0] ? set : lane->ep->name, more, sizeof more);
    snprintf(lane->why, sizeof lane->why, "the server's certificate: %s%s",
             X509_verify_cert_error_string(error), more);
    return 0;
}

// Whether the peer ended the handshake because it does not take our certificate. *what: its reason.
static bool refused_by_peer(unsigned long code, const char **what)
{
    static const struct {
        int reason;
        const char *what;
    } alerts[] = {{SSL_R_TLSV1_ALERT_UNKNOWN_CA, "it does not know the issuer"},
                  {SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED, "it has expired"},
                  {SSL_R_SSLV3_ALERT_CERTIFICATE_REVOKED, "it was revoked"},
                  {SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE, "it is of a kind it does not take"},
                  {SSL_R_SSLV3_ALERT_BAD_CERTIFICATE, "it is for another name, or damaged"},
                  {SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN, "it gives no reason"}};
    for (size_t i = 0; i < sizeof alerts / sizeof alerts[0]; i++) {
        if (ERR_GET_LIB(code) == ERR_LIB_SSL && ERR_GET_REASON(code) == alerts[i].reason) {
            *what = alerts[i].what;
            return true;
        }
    }
    return false;
}

// -- Contexts ------------------------------------------------------------------------------------------------------------------------

static SSL_CTX *context(bool server)
{
    SSL_CTX *ctx = SSL_CTX_new(server ? TLS_server_method() : TLS_client_method());
    if (!ctx)
        return NULL;
    SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
    SSL_CTX_set_mode(ctx, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_options(ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_session_cache_mode(ctx, SSL_SESS_CACHE_OFF);
    return ctx;
}

static int open_client(struct lieni_prov *prov, struct lieni_tls *tls, const char *ca)
{
    tls->client = context(false);
    if (!tls->client)
        return LIEN_ENOMEM;
    SSL_CTX_set_verify(tls->client, SSL_VERIFY_PEER, note_fault);
    if (ca && ca[0])
        return SSL_CTX_load_verify_file(tls->client, ca) == 1 ? 0 : refuse(prov, "tls_ca", ca);
    return SSL_CTX_set_default_verify_paths(tls->client) == 1 ? 0 : refuse(prov, "tls_ca", "");
}

static int open_server(struct lieni_prov *prov, struct lieni_tls *tls, const char *cert,
                       const char *key)
{
    bool has_cert = cert && cert[0], has_key = key && key[0];
    if (!has_cert && !has_key)
        return 0; // listen says that it needs them
    if (!has_cert || !has_key)
        return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_ENOPROVIDER,
                                "option %s is set and %s is not", has_cert ? "tls_cert" : "tls_key",
                                has_cert ? "tls_key" : "tls_cert");
    tls->server = context(true);
    if (!tls->server)
        return LIEN_ENOMEM;
    union {
        const char *from;
        void *arg; // read only there
    } alpn = {.from = alpn_of(prov)};
    SSL_CTX_set_alpn_select_cb(tls->server, choose_alpn, alpn.arg);
    if (SSL_CTX_use_certificate_chain_file(tls->server, cert) != 1)
        return refuse(prov, "tls_cert", cert);
    if (SSL_CTX_use_PrivateKey_file(tls->server, key, SSL_FILETYPE_PEM) != 1)
        return refuse(prov, "tls_key", key); // also if it is not that certificate's
    return 0;
}

static BIO_METHOD *make_method(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "lien socket");
    if (method) {
        BIO_meth_set_write(method, bio_write);
        BIO_meth_set_read(method, bio_read);
        BIO_meth_set_ctrl(method, bio_ctrl);
    }
    return method;
}

int lieni_tls_open(struct lieni_prov *prov, const struct lieni_prov_args *args,
                   struct lieni_tls **out)
{
    struct lieni_tls *tls = calloc(1, sizeof *tls);
    if (!tls)
        return LIEN_ENOMEM;
    *out = tls; // freed with the provider, also after a failure
    if (args->tls_name)
        snprintf(tls->name, sizeof tls->name, "%s", args->tls_name);
    tls->method = make_method();
    int code = tls->method ? open_client(prov, tls, args->tls_ca) : LIEN_ENOMEM;
    return code == 0 ? open_server(prov, tls, args->tls_cert, args->tls_key) : code;
}

void lieni_tls_close(struct lieni_tls *tls)
{
    if (!tls)
        return;
    SSL_CTX_free(tls->client);
    SSL_CTX_free(tls->server);
    BIO_meth_free(tls->method);
    free(tls);
}

bool lieni_tls_serves(const struct lieni_tls *tls)
{
    return tls->server != NULL;
}

// -- One socket ----------------------------------------------------------------------------------------------------------------------

// The name that the server's certificate must have. False: OpenSSL does not take it.
static bool expect_name(SSL *ssl, const char *name)
{
    unsigned char address[sizeof(struct in6_addr)];
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    if (inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1;
    X509_VERIFY_PARAM_set_hostflags(param, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    union {
        const char *from;
        void *name;          // copied from only
    } host = {.from = name}; // as SSL_set_tlsext_host_name, whose cast drops the const
    return X509_VERIFY_PARAM_set1_host(param, name, 0) == 1 &&
           SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name, host.name) == 1;
}

static bool offer_alpn(SSL *ssl, const char *name)
{
    unsigned char list[32];
    size_t len = strlen(name);
    list[0] = (unsigned char)len;
    memcpy(list + 1, name, len);
    return SSL_set_alpn_protos(ssl, list, (unsigned)len + 1) == 0;
}

int lieni_tls_end_open(struct lieni_lane *lane)
{
    struct lieni_prov *prov = lane->ep->prov;
    struct lieni_tls *tls = prov->tls;
    struct lieni_tls_end *end = calloc(1, sizeof *end);
    BIO *bio = end ? BIO_new(tls->method) : NULL;
    end = bio ? end : (free(end), NULL);
    if (!end)
        return LIEN_ENOMEM;
    BIO_set_data(bio, &lane->pipe);
    BIO_set_init(bio, 1);
    end->ssl = SSL_new(lane->server ? tls->server : tls->client);
    if (!end->ssl) {
        BIO_free(bio);
        free(end);
        return LIEN_ENOMEM;
    }
    SSL_set_bio(end->ssl, bio, bio);
    lane->pipe.tls = end;
    if (lane->server) {
        SSL_set_accept_state(end->ssl);
        return 0;
    }
    SSL_set_connect_state(end->ssl);
    if (!SSL_set_app_data(end->ssl, lane)) // for note_fault
        return LIEN_ENOMEM;                // and closed by the lane
    const char *name = tls->name[0] ? tls->name : lane->ep->name;
    if (expect_name(end->ssl, name) && offer_alpn(end->ssl, alpn_of(prov)))
        return 0;
    char text[160];
    return lieni_stream_say(prov, LIEN_LOG_ERROR, LIEN_EADDR,
                            "no certificate can be checked for the name '%s': %s", name,
                            reason(text, sizeof text));
}

// The LIEN_ code of a call that returned `rc`.
static int code_of(struct lieni_pipe *pipe, int rc)
{
    switch (SSL_get_error(pipe->tls->ssl, rc)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        return LIEN_EAGAIN;
    case SSL_ERROR_ZERO_RETURN:
        return LIEN_ECLOSED;
    default:
        pipe->tls->broken = true;
        return pipe->error && pipe->error != ECONNRESET && pipe->error != EPIPE ? LIEN_EIO
                                                                                : LIEN_ECLOSED;
    }
}

static int check_alpn(struct lieni_lane *lane)
{
    const char *want = alpn_of(lane->ep->prov);
    const unsigned char *got = NULL;
    unsigned len = 0;
    SSL_get0_alpn_selected(lane->pipe.tls->ssl, &got, &len);
    if (len == strlen(want) && memcmp(got, want, len) == 0)
        return 0;
    snprintf(lane->why, sizeof lane->why, "the peer does not agree on the protocol '%s' (ALPN)",
             want);
    return LIEN_EPROTO;
}

int lieni_tls_ready(struct lieni_lane *lane)
{
    SSL *ssl = lane->pipe.tls->ssl;
    ERR_clear_error();
    int rc = SSL_do_handshake(ssl);
    if (rc == 1)
        return check_alpn(lane);
    int code = code_of(&lane->pipe, rc);
    if (code == LIEN_EAGAIN)
        return code;
    long verdict = SSL_get_verify_result(ssl);
    const char *what;
    char text[96];
    if (!lane->server && verdict != X509_V_OK) { // note_fault said why
        ERR_clear_error();
        return LIEN_EAUTH;
    }
    if (lane->server && refused_by_peer(ERR_peek_error(), &what)) {
        snprintf(lane->why, sizeof lane->why, "the client does not take tls_cert: %s", what);
        ERR_clear_error();
        return LIEN_EAUTH;
    }
    snprintf(lane->why, sizeof lane->why, "%s", reason(text, sizeof text));
    return code;
}

int64_t lieni_tls_read(struct lieni_pipe *pipe, void *buf, size_t len)
{
    size_t n = 0;
    if (pipe->tls->broken)
        return LIEN_ECLOSED;
    ERR_clear_error();
    int rc = SSL_read_ex(pipe->tls->ssl, buf, len, &n);
    return rc == 1 ? (int64_t)n : code_of(pipe, rc);
}

int64_t lieni_tls_write(struct lieni_pipe *pipe, const struct iovec *iov, int n)
{
    (void)n; // a record has bytes of one place: the rest comes with the next call
    size_t taken = 0;
    if (pipe->tls->broken)
        return LIEN_ECLOSED;
    ERR_clear_error();
    int rc = SSL_write_ex(pipe->tls->ssl, iov->iov_base, iov->iov_len, &taken);
    return rc == 1 ? (int64_t)taken : code_of(pipe, rc);
}

void lieni_tls_end(struct lieni_pipe *pipe)
{
    if (pipe->tls->broken)
        return;
    ERR_clear_error();
    SSL_shutdown(pipe->tls->ssl);
    ERR_clear_error();
}

void lieni_tls_end_close(struct lieni_pipe *pipe)
{
    if (!pipe->tls)
        return;
    SSL_free(pipe->tls->ssl);
    free(pipe->tls);
    pipe->tls = NULL;
}
