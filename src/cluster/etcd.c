/* The client, see etcd.h. The gateway takes and gives protocol buffers as JSON: 64-bit numbers are
 * strings, keys and values base64, and what is zero or empty is left out. */
#define _GNU_SOURCE
#include "etcd.h"

#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef TT_HAVE_CURL
#include <curl/curl.h>
#endif

enum { ADDRESSES = 16, NAME = 300, ANSWER_MOST = 4 << 20 };

/* ---- addresses ---- */

/* "host:port", "10.0.0.1:2379", "[::1]:2379": nothing that a URL would take for something else. */
static bool is_place(const char *text, size_t size)
{
    const char *colon = memrchr(text, ':', size);
    size_t host = colon ? (size_t)(colon - text) : 0, digits = 0;

    if (!host || size >= NAME - 10) return false;
    for (const char *p = colon + 1; p < text + size; p++) digits += *p >= '0' && *p <= '9';
    if (digits != size - host - 1 || !digits || digits > 5 || atoi(colon + 1) > 65535) return false;
    for (size_t i = 0; i < host; i++) {
        bool v6 = text[0] == '[' && text[host - 1] == ']';
        if (!(text[i] >= '0' && text[i] <= '9') && !(text[i] >= 'a' && text[i] <= 'z') &&
            !(text[i] >= 'A' && text[i] <= 'Z') && !strchr(v6 ? "[]:." : ".-_", text[i]))
            return false;
    }
    return true;
}

tt_err tt_etcd_urls(const char *address, tt_str *out)
{
    bool safe = !strncmp(address, "etcds://", 8);
    const char *at = address + (safe ? 8 : 7);
    int count = 0;

    if (!safe && strncmp(address, "etcd://", 7)) goto wrong;
    for (;; at++) {
        size_t n = strcspn(at, ",");
        if (!is_place(at, n) || ++count > ADDRESSES) goto wrong;
        tt_str_add(out, "%shttp%s://%.*s", count > 1 ? "," : "", safe ? "s" : "", (int)n, at);
        at += n;
        if (!*at) return TT_OK;
    }
wrong:
    return tt_fail(TT_EINVAL,
                   "'%s' is no address of a coordinator: say etcd://host:2379, or "
                   "etcd://a:2379,b:2379,c:2379",
                   address);
}

#ifdef TT_HAVE_CURL

struct tt_etcd {
    char *address;
    char url[ADDRESSES][NAME];
    int urls, at; /* at: the one that answered last */
    double timeout_s;
    CURL *curl;
    struct curl_slist *headers;
};

tt_err tt_etcd_open(const char *address, tt_etcd **out)
{
    tt_etcd *e;
    tt_str urls = {0};
    char *save, *one;
    tt_err err;

    *out = NULL;
    if ((err = tt_etcd_urls(address, &urls))) {
        tt_str_free(&urls);
        return err;
    }
    if (!(e = calloc(1, sizeof *e)) || !(e->address = strdup(address))) tt_mem_out(sizeof *e);
    for (one = strtok_r(urls.data, ",", &save); one; one = strtok_r(NULL, ",", &save))
        snprintf(e->url[e->urls++], NAME, "%s", one);
    tt_str_free(&urls);
    e->timeout_s = 2;
    e->curl = curl_easy_init();
    e->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (!e->curl || !e->headers) {
        tt_etcd_close(e);
        return tt_fail(TT_ENOMEM, "libcurl");
    }
    *out = e;
    return TT_OK;
}

void tt_etcd_patience(tt_etcd *e, double timeout_s)
{
    e->timeout_s = timeout_s;
}

void tt_etcd_close(tt_etcd *e)
{
    if (!e) return;
    if (e->curl) curl_easy_cleanup(e->curl);
    curl_slist_free_all(e->headers);
    free(e->address);
    free(e);
}

/* ---- one request ---- */

static size_t receive(char *data, size_t one, size_t n, void *arg)
{
    tt_str *s = arg;

    n *= one;
    if (s->size + n > ANSWER_MOST) return 0;
    tt_str_add(s, "%.*s", (int)n, data);
    return n;
}

static void prepare(tt_etcd *e, const char *url, const char *body, tt_str *answer, char *detail)
{
    const char *certificates = getenv("SSL_CERT_FILE");
    CURL *c = e->curl;

    curl_easy_reset(c); /* connections stay open */
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_NOPROXY, "*"); /* it is one of ours */
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(1000 * e->timeout_s));
    curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, detail);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "tutti/" TT_VERSION);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, e->headers);
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, receive);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, answer);
    if (certificates && *certificates) curl_easy_setopt(c, CURLOPT_CAINFO, certificates);
}

static bool is_refused(CURLcode rc)
{
    return rc == CURLE_PEER_FAILED_VERIFICATION || rc == CURLE_SSL_CACERT_BADFILE;
}

static tt_err ask_one(tt_etcd *e, const char *base, const char *path, const char *body,
                      json_t **answer)
{
    char url[NAME + 64], detail[CURL_ERROR_SIZE] = "";
    tt_str text = {0};
    const char *why = NULL;
    json_t *o = NULL;
    tt_err err = TT_OK;
    long status = 0;
    CURLcode rc;

    snprintf(url, sizeof url, "%s%s", base, path);
    prepare(e, url, body, &text, detail);
    rc = curl_easy_perform(e->curl);
    curl_easy_getinfo(e->curl, CURLINFO_RESPONSE_CODE, &status);
    if (rc != CURLE_OK) {
        err = tt_fail(is_refused(rc) ? TT_EENV : TT_EPEER, "%s: %s", base,
                      *detail ? detail : curl_easy_strerror(rc));
    } else {
        o = text.data ? json_loads(text.data, 0, NULL) : NULL;
        why = json_string_value(json_object_get(o, "error"));
        /* of a stream: the answer, or the trouble, is one level down */
        if (json_is_object(json_object_get(o, "error")))
            why = json_string_value(json_object_get(json_object_get(o, "error"), "message"));
        if (json_is_object(json_object_get(o, "result"))) {
            json_t *inner = json_incref(json_object_get(o, "result"));
            json_decref(o);
            o = inner;
        }
        if (status >= 500 || (why && status == 429))
            err = tt_fail(TT_EPEER, "%s: %s", base, why ? why : "it has a trouble of its own");
        else if (why)
            err = tt_fail(TT_EENV, "%s: %s", base, why);
        else if (status != 200 || !json_is_object(json_object_get(o, "header")))
            err = tt_fail(TT_EENV, "%s: what answers (HTTP status %ld) is no etcd 3.4 or newer",
                          base, status);
    }
    tt_str_free(&text);
    if (err)
        json_decref(o);
    else
        *answer = o;
    return err;
}

/* Takes the reference of body. */
static tt_err ask(tt_etcd *e, const char *path, json_t *body, json_t **answer)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    tt_err err = TT_EPEER;

    *answer = NULL;
    json_decref(body);
    if (!text) return tt_fail(TT_ENOMEM, "a request to %s", e->address);
    for (int i = 0; i < e->urls && err == TT_EPEER; i++) {
        int at = (e->at + i) % e->urls;
        err = ask_one(e, e->url[at], path, text, answer);
        if (err != TT_EPEER) {
            e->at = at;
            break;
        }
    }
    free(text);
    return err;
}

#else

struct tt_etcd {
    int none;
};

tt_err tt_etcd_open(const char *address, tt_etcd **out)
{
    *out = NULL;
    return tt_fail(TT_EENV,
                   "%s: this build cannot reach it: install libcurl4-openssl-dev and build again",
                   address);
}

void tt_etcd_patience(tt_etcd *e, double timeout_s)
{
    (void)e, (void)timeout_s;
}

void tt_etcd_close(tt_etcd *e)
{
    (void)e;
}

static tt_err ask(tt_etcd *e, const char *path, json_t *body, json_t **answer)
{
    (void)e, (void)path;
    json_decref(body);
    *answer = NULL;
    return tt_fail(TT_EENV, "built without libcurl");
}

#endif

/* ---- what goes in, and what comes out ---- */

static json_t *packed(const char *text, size_t size)
{
    unsigned char *wide = malloc(4 * (size / 3 + 1) + 1);
    json_t *o;

    if (!wide) tt_mem_out(size);
    EVP_EncodeBlock(wide, (const unsigned char *)text, (int)size);
    o = json_string((const char *)wide);
    free(wide);
    return o;
}

/* To be freed; NULL: it is none. */
static char *unpacked(const char *text)
{
    size_t size = text ? strlen(text) : 0;
    char *out;
    int n;

    if (!text || size % 4) return NULL;
    if (!(out = malloc(size / 4 * 3 + 1))) tt_mem_out(size);
    n = EVP_DecodeBlock((unsigned char *)out, (const unsigned char *)text, (int)size);
    if (n < 0) {
        free(out);
        return NULL;
    }
    out[n] = 0; /* padding became zeros: a text ends before them */
    return out;
}

static json_t *number(int64_t n)
{
    return json_sprintf("%lld", (long long)n);
}

static int64_t number_in(const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);
    const char *text = json_string_value(v);

    return text ? strtoll(text, NULL, 10) : json_integer_value(v);
}

static void take_head(const json_t *answer, tt_etcd_head *out)
{
    const json_t *h = json_object_get(answer, "header");
    const char *cluster = json_string_value(json_object_get(h, "cluster_id"));

    snprintf(out->cluster, sizeof out->cluster, "%s", cluster ? cluster : "");
    out->revision = number_in(h, "revision");
}

void tt_etcd_key_free(tt_etcd_key *k)
{
    free(k->value);
    *k = (tt_etcd_key){0};
}

/* ---- calls ---- */

tt_err tt_etcd_look(tt_etcd *e, const char *folder, const char *const *names, int count,
                    tt_etcd_key *out, tt_etcd_head *head)
{
    size_t size = strlen(folder);
    char *end = strdup(folder);
    json_t *answer, *kv;
    size_t i;
    tt_err err;

    if (!end) tt_mem_out(size);
    end[size - 1]++; /* '/' becomes '0', the first that is not below it */
    memset(out, 0, (size_t)count * sizeof *out);
    err = ask(e, "/v3/kv/range",
              json_pack("{s:o, s:o}", "key", packed(folder, size), "range_end", packed(end, size)),
              &answer);
    free(end);
    if (err) return err;
    take_head(answer, head);
    json_array_foreach(json_object_get(answer, "kvs"), i, kv)
    {
        char *key = unpacked(json_string_value(json_object_get(kv, "key")));
        for (int n = 0; n < count && key; n++) {
            if (strncmp(key, folder, size) || strcmp(key + size, names[n]) || out[n].value)
                continue;
            out[n] = (tt_etcd_key){unpacked(json_string_value(json_object_get(kv, "value"))),
                                   number_in(kv, "create_revision"), number_in(kv, "mod_revision"),
                                   number_in(kv, "lease")};
            if (!out[n].value && !(out[n].value = strdup(""))) tt_mem_out(1); /* it is there */
        }
        free(key);
    }
    json_decref(answer);
    return TT_OK;
}

tt_err tt_etcd_grant(tt_etcd *e, int64_t wanted_s, int64_t *id, double *ttl_s)
{
    json_t *answer;
    tt_err err = ask(e, "/v3/lease/grant", json_pack("{s:o}", "TTL", number(wanted_s)), &answer);

    *id = 0;
    *ttl_s = 0;
    if (err) return err;
    *id = number_in(answer, "ID");
    *ttl_s = (double)number_in(answer, "TTL");
    json_decref(answer);
    return *id ? TT_OK : tt_fail(TT_EENV, "it gives no lease");
}

tt_err tt_etcd_renew(tt_etcd *e, int64_t id, double *ttl_s)
{
    json_t *answer;
    tt_err err = ask(e, "/v3/lease/keepalive", json_pack("{s:o}", "ID", number(id)), &answer);

    *ttl_s = 0;
    if (err) return err;
    *ttl_s = (double)number_in(answer, "TTL");
    json_decref(answer);
    return TT_OK;
}

tt_err tt_etcd_revoke(tt_etcd *e, int64_t id)
{
    json_t *answer;
    tt_err err = ask(e, "/v3/lease/revoke", json_pack("{s:o}", "ID", number(id)), &answer);

    json_decref(answer);
    return err == TT_EENV ? TT_OK : err; /* "lease not found" */
}

tt_err tt_etcd_do(tt_etcd *e, const tt_etcd_deed *d, bool *done, int64_t *revision)
{
    json_t *deeds = json_array(), *answer;
    tt_etcd_head head;
    tt_err err;

    *done = false;
    if (d->put_key)
        json_array_append_new(deeds, json_pack("{s:{s:o, s:o, s:o}}", "request_put", "key",
                                               packed(d->put_key, strlen(d->put_key)), "value",
                                               packed(d->value, strlen(d->value)), "lease",
                                               number(d->lease)));
    if (d->remove_key)
        json_array_append_new(deeds, json_pack("{s:{s:o}}", "request_delete_range", "key",
                                               packed(d->remove_key, strlen(d->remove_key))));
    err = ask(e, "/v3/kv/txn",
              json_pack("{s:[{s:o, s:s, s:s, s:o}], s:o}", "compare", "key",
                        packed(d->if_key, strlen(d->if_key)), "target", "CREATE", "result", "EQUAL",
                        "create_revision", number(d->made), "success", deeds),
              &answer);
    if (err) return err;
    *done = json_is_true(json_object_get(answer, "succeeded"));
    take_head(answer, &head);
    *revision = head.revision;
    json_decref(answer);
    return TT_OK;
}
