/* The floor beside a client: streams read by one epoll loop with kernel receive times, nothing parsed, nothing kept.
 *
 *   bare_reader PORT STREAMS SECONDS TOKENS [split]
 *
 * A stream's next request leaves as soon as the last has ended. What this costs an event is what the kernel costs. With
 * `split` it finds each event's end and whether it carries content as well: what a compiled core would do at the least.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static long token_events;

/* Events that lie whole in one read, as nearly all do; it is the cost that is wanted here, not the figures. */
static void split_events(const char *at, const char *end) {
    static const char content[] = "\"content\":\"";
    for (const char *stop; (stop = memmem(at, end - at, "\n\n", 2)); at = stop + 2) {
        const char *text = memmem(at, stop - at, content, sizeof content - 1);
        if (text && text[sizeof content - 1] != '"') token_events++;
    }
}

int main(int count, char **arguments) {
    if (count < 5) return 2;
    int port = atoi(arguments[1]), streams = atoi(arguments[2]), one = 1;
    double seconds = atof(arguments[3]);
    int split = count > 5;
    char body[256], request[512];
    snprintf(body, sizeof body, "{\"model\":\"truth\",\"stream\":true,\"max_tokens\":%s}", arguments[4]);
    int request_length = snprintf(request, sizeof request,
                                  "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s",
                                  strlen(body), body);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int epoll = epoll_create1(0);
    for (int i = 0; i < streams; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, sizeof address)) return 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPNS, &one, sizeof one);
        fcntl(fd, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
        send(fd, request, request_length, MSG_NOSIGNAL);
        usleep(1000000 / streams);
    }
    static char buffer[65536], control[256];
    struct epoll_event ready[256];
    double end = now_s() + seconds;
    while (now_s() < end) {
        int n = epoll_wait(epoll, ready, 256, 100);
        for (int i = 0; i < n; i++) {
            struct iovec into = {buffer, sizeof buffer};
            struct msghdr message = {
                .msg_iov = &into, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
            ssize_t length = recvmsg(ready[i].data.fd, &message, 0);
            if (split && length > 0) split_events(buffer, buffer + length);
            if (length >= 5 && !memcmp(buffer + length - 5, "0\r\n\r\n", 5))
                send(ready[i].data.fd, request, request_length, MSG_NOSIGNAL);
        }
    }
    if (split) printf("%ld\n", token_events);
    return 0;
}
