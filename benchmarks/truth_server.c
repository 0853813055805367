/* A server that knows the truth: it speaks enough of the OpenAI chat API to serve any client, writes each token event on
 * a schedule, and notes when it really did, so that a client's figures can be held against its own.
 *
 *   truth_server PORT TTFT_US ITL_US JITTER [CERTIFICATE]     JITTER 0..1: each delay is drawn from +- that share
 *
 * A request's TTFT runs from the kernel's receive time of its last bytes to the write of its first token event; an
 * event's time is the middle of its write. GET /truth tells quantiles since GET /reset, GET /counters what adds up.
 * One thread, one epoll, a heap of the streams by the time of their next event. With a certificate (and key, in one PEM
 * file) it speaks TLS; compiled without WITH_TLS it cannot.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#ifdef WITH_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#else
typedef void SSL;
#endif

enum { MOST_CONNECTIONS = 65536, REQUEST_ROOM = 1 << 20, NOT_STREAMING = -1 };

typedef struct {
    int fd, length, tokens_left, tokens, place; /* place: in the heap, or NOT_STREAMING */
    int wants_usage;
    int64_t received_ns, due_ns, last_ns;
    char *request;
    SSL *tls;
} Connection;

typedef struct {
    double *values;
    size_t count, room;
} Samples;

static Connection *connections[MOST_CONNECTIONS], *heap[MOST_CONNECTIONS];
static int heap_size, epoll;
#ifdef WITH_TLS
static SSL_CTX *tls_context;
#endif
static int64_t ttft_ns, itl_ns;
static double jitter;
static Samples ttft, itl, lateness;
static long requests, failed_writes;
static double stream_seconds;
static int64_t counted_until_ns, events_written;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}

static double uniform(void) {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) * (1.0 / 9007199254740992.0);
}

static int64_t drawn(int64_t mean_ns) { return mean_ns * (1 + jitter * (2 * uniform() - 1)); }

static void add(Samples *samples, double value) {
    if (samples->count == samples->room) {
        samples->room = samples->room ? 2 * samples->room : 1 << 16;
        samples->values = realloc(samples->values, samples->room * sizeof(double));
    }
    samples->values[samples->count++] = value;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double quantile(const Samples *sorted, double q) {
    if (!sorted->count) return 0;
    double place = (sorted->count - 1) * q;
    size_t below = place;
    double part = place - below;
    return below + 1 < sorted->count ? sorted->values[below] * (1 - part) + sorted->values[below + 1] * part
                                     : sorted->values[below];
}

/* -- the heap of streams, soonest event first -- */

static void set_place(int place, Connection *c) {
    heap[place] = c;
    c->place = place;
}

static void rise(int place) {
    Connection *c = heap[place];
    for (; place && c->due_ns < heap[(place - 1) / 2]->due_ns; place = (place - 1) / 2)
        set_place(place, heap[(place - 1) / 2]);
    set_place(place, c);
}

static void sink(int place) {
    Connection *c = heap[place];
    for (int child; (child = 2 * place + 1) < heap_size; place = child) {
        if (child + 1 < heap_size && heap[child + 1]->due_ns < heap[child]->due_ns) child++;
        if (c->due_ns <= heap[child]->due_ns) break;
        set_place(place, heap[child]);
    }
    set_place(place, c);
}

static void count_streams(void) {
    int64_t now = now_ns();
    stream_seconds += heap_size * (now - counted_until_ns) * 1e-9;
    counted_until_ns = now;
}

static void start_stream(Connection *c) {
    count_streams();
    set_place(heap_size++, c);
    rise(c->place);
}

static void end_stream(Connection *c) {
    count_streams();
    int place = c->place;
    c->place = NOT_STREAMING;
    if (place != --heap_size) {
        set_place(place, heap[heap_size]);
        rise(place);
        sink(heap[place]->place);
    }
}

/* -- connections -- */

static void hang_up(Connection *c) {
    if (c->place != NOT_STREAMING) end_stream(c);
#ifdef WITH_TLS
    if (c->tls) SSL_free(c->tls);
#endif
    connections[c->fd] = NULL;
    close(c->fd);
    free(c->request);
    free(c);
}

static int write_all(Connection *c, const char *bytes, int length) {
    int written;
#ifdef WITH_TLS
    if (c->tls)
        written = SSL_write(c->tls, bytes, length);
    else
#endif
        written = send(c->fd, bytes, length, MSG_NOSIGNAL);
    if (written == length) return 1;
    failed_writes++;
    return 0;
}

static int write_chunk(Connection *c, const char *body) {
    char chunk[4096];
    return write_all(c, chunk, snprintf(chunk, sizeof chunk, "%zx\r\n%s\r\n", strlen(body), body));
}

/* recvmsg, noting when the kernel received the bytes. */
static ssize_t receive(Connection *c, char *room, int size, int flags) {
    char control[64];
    struct iovec into = {room, size};
    struct msghdr message = {.msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    ssize_t length = recvmsg(c->fd, &message, flags);
    if (length <= 0) return length;
    c->received_ns = now_ns();
    for (struct cmsghdr *m = CMSG_FIRSTHDR(&message); m; m = CMSG_NXTHDR(&message, m))
        if (m->cmsg_type == SCM_TIMESTAMPNS) {
            struct timespec stamp;
            memcpy(&stamp, CMSG_DATA(m), sizeof stamp);
            c->received_ns = stamp.tv_sec * 1000000000ll + stamp.tv_nsec;
        }
    return length;
}

/* Bytes read, 0 for nothing now, -1 for the end. */
static int read_some(Connection *c) {
    char *room = c->request + c->length;
    int size = REQUEST_ROOM - c->length - 1;
#ifdef WITH_TLS
    if (c->tls) {
        char peeked[4096];
        receive(c, peeked, sizeof peeked, MSG_PEEK);
        ERR_clear_error(); /* SSL_get_error takes what another connection left in the queue for this one's */
        int length = SSL_read(c->tls, room, size);
        if (length > 0) return length;
        int error = SSL_get_error(c->tls, length);
        return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : -1;
    }
#endif
    ssize_t length = receive(c, room, size, 0);
    return length > 0 ? length : length < 0 && errno == EAGAIN ? 0 : -1;
}

/* -- answers -- */

static void answer(Connection *c, const char *json) {
    char reply[8192];
    write_all(c, reply, snprintf(reply, sizeof reply,
                                 "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                                 strlen(json), json));
}

static int describe(char *text, int room, const char *name, Samples *samples) {
    qsort(samples->values, samples->count, sizeof(double), ascending);
    return snprintf(text, room, "\"%s\":{\"count\":%zu,\"p50\":%.5f,\"p95\":%.5f,\"p99\":%.5f,\"max\":%.5f}", name,
                    samples->count, quantile(samples, .5), quantile(samples, .95), quantile(samples, .99),
                    quantile(samples, 1));
}

static void tell_truth(Connection *c) {
    char text[2048];
    int n = snprintf(text, sizeof text, "{\"requests\":%ld,\"failed_writes\":%ld,", requests, failed_writes);
    n += describe(text + n, sizeof text - n, "ttft_ms", &ttft);
    text[n++] = ',';
    n += describe(text + n, sizeof text - n, "itl_ms", &itl);
    text[n++] = ',';
    n += describe(text + n, sizeof text - n, "lateness_ms", &lateness);
    snprintf(text + n, sizeof text - n, "}\n");
    answer(c, text);
}

static void serve_page(Connection *c) {
    char text[512];
    if (!strncmp(c->request, "GET /truth ", 11)) {
        tell_truth(c);
    } else if (!strncmp(c->request, "GET /reset ", 11)) {
        ttft.count = itl.count = lateness.count = 0;
        requests = failed_writes = 0;
        answer(c, "{}");
    } else if (!strncmp(c->request, "GET /counters ", 14)) {
        count_streams();
        snprintf(text, sizeof text, "{\"at_s\":%.6f,\"stream_seconds\":%.6f,\"events\":%ld,\"streams\":%d}",
                 counted_until_ns * 1e-9, stream_seconds, (long)events_written, heap_size);
        answer(c, text);
    } else if (strstr(c->request, "/models")) {
        answer(c, "{\"object\":\"list\",\"data\":[{\"id\":\"truth\",\"object\":\"model\",\"max_model_len\":32768}]}");
    } else {
        answer(c, "{\"version\":\"truth\"}");
    }
}

static int number_after(const char *body, const char *key) {
    const char *at = strstr(body, key);
    return at ? atoi(at + strlen(key) + strspn(at + strlen(key), " :")) : 0;
}

static void begin_answer(Connection *c, const char *body) {
    int tokens = number_after(body, "\"max_completion_tokens\"");
    if (!tokens) tokens = number_after(body, "\"max_tokens\"");
    c->tokens = c->tokens_left = tokens > 0 ? tokens : 128;
    c->wants_usage = strstr(body, "include_usage") != NULL;
    c->due_ns = c->received_ns + drawn(ttft_ns);
    requests++;
    static const char head[] = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
                               "Transfer-Encoding: chunked\r\n\r\n";
    if (write_all(c, head, sizeof head - 1))
        start_stream(c);
    else
        hang_up(c);
}

#define CHUNK "data: {\"id\":\"chatcmpl-truth\",\"object\":\"chat.completion.chunk\",\"created\":1764400000,\"model\":\"truth\","
#define DELTA(delta, finish) \
    CHUNK "\"choices\":[{\"index\":0,\"delta\":{" delta "},\"logprobs\":null,\"finish_reason\":" finish "}]}\n\n"

static void end_answer(Connection *c) {
    char text[2048];
    end_stream(c);
    int n = snprintf(text, sizeof text, DELTA("\"content\":\"\"", "\"length\""));
    if (c->wants_usage)
        n += snprintf(text + n, sizeof text - n,
                      CHUNK "\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"total_tokens\":%d,\"completion_tokens\":%d}}\n\n",
                      16 + c->tokens, c->tokens);
    snprintf(text + n, sizeof text - n, "data: [DONE]\n\n");
    if (!write_chunk(c, text) || !write_all(c, "0\r\n\r\n", 5)) hang_up(c);
}

static void write_event(Connection *c) {
    static const char role[] = DELTA("\"role\":\"assistant\",\"content\":\"\"", "null");
    static const char token[] = DELTA("\"content\":\" token\"", "null");
    char text[2 * sizeof role];
    int first = c->tokens_left == c->tokens;
    snprintf(text, sizeof text, "%s%s", first ? role : "", token);
    int64_t before = now_ns();
    add(&lateness, (before - c->due_ns) * 1e-6);
    if (!write_chunk(c, text)) {
        hang_up(c);
        return;
    }
    int64_t written = (before + now_ns()) / 2;
    events_written++;
    if (first)
        add(&ttft, (written - c->received_ns) * 1e-6);
    else
        add(&itl, (written - c->last_ns) * 1e-6);
    c->last_ns = written;
    c->due_ns += drawn(itl_ns);
    if (--c->tokens_left)
        sink(c->place);
    else
        end_answer(c);
}

static void serve_requests(Connection *c) {
    for (int got; (got = read_some(c)) != 0;) {
        if (got < 0) {
            hang_up(c);
            return;
        }
        c->length += got;
        if (c->length >= REQUEST_ROOM - 1) {
            hang_up(c);
            return;
        }
    }
    c->request[c->length] = 0;
    char *head_end = strstr(c->request, "\r\n\r\n");
    if (!head_end) return;
    char *length_line = strcasestr(c->request, "content-length:");
    int body_length = length_line && length_line < head_end ? atoi(length_line + 15) : 0;
    int whole = head_end + 4 - c->request + body_length;
    if (c->length < whole) return;
    c->length = 0; /* one request at a time: clients do not pipeline */
    if (!strncmp(c->request, "GET", 3))
        serve_page(c);
    else
        begin_answer(c, head_end + 4);
}

static void accept_all(int listener) {
    int one = 1;
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        if (fd >= MOST_CONNECTIONS) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        Connection *c = calloc(1, sizeof *c);
        c->fd = fd;
        c->place = NOT_STREAMING;
        c->request = malloc(REQUEST_ROOM);
#ifdef WITH_TLS
        if (tls_context) {
            c->tls = SSL_new(tls_context);
            SSL_set_fd(c->tls, fd);
            SSL_set_accept_state(c->tls);
        }
#endif
        connections[fd] = c;
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

static void use_certificate(const char *path) {
#ifdef WITH_TLS
    tls_context = SSL_CTX_new(TLS_server_method());
    if (SSL_CTX_use_certificate_chain_file(tls_context, path) == 1 &&
        SSL_CTX_use_PrivateKey_file(tls_context, path, SSL_FILETYPE_PEM) == 1)
        return;
#endif
    fprintf(stderr, "truth_server: no TLS with %s\n", path);
    exit(2);
}

int main(int count, char **arguments) {
    if (count < 5) {
        fprintf(stderr, "usage: truth_server PORT TTFT_US ITL_US JITTER [CERTIFICATE]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    ttft_ns = atoll(arguments[2]) * 1000;
    itl_ns = atoll(arguments[3]) * 1000;
    jitter = atof(arguments[4]);
    if (count > 5) use_certificate(arguments[5]);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(atoi(arguments[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) {
        perror("truth_server");
        return 1;
    }
    epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[256];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    counted_until_ns = now_ns();
    for (;;) {
        struct timespec wait = {0}, *limit = NULL;
        if (heap_size) {
            int64_t left = heap[0]->due_ns - now_ns();
            if (left > 0) wait = (struct timespec){left / 1000000000, left % 1000000000};
            limit = &wait;
        }
        int n = epoll_pwait2(epoll, ready, 256, limit, NULL);
        for (int i = 0; i < n; i++) {
            if (ready[i].data.fd == listener)
                accept_all(listener);
            else if (connections[ready[i].data.fd])
                serve_requests(connections[ready[i].data.fd]);
        }
        while (heap_size && heap[0]->due_ns <= now_ns()) write_event(heap[0]);
    }
}
