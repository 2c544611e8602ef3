/* What a group says of itself: whether it is open, and why it is not; its counters and its settings. */
#define _POSIX_C_SOURCE 200809L
#include "job.h"
#include <time.h>
#include <unistd.h>

struct found {
    int settings, ranks, transports, timeouts;
    brv_group *group;
};

static void note(const char *name, const char *value, void *user_data)
{
    struct found *found = user_data;
    found->settings++;
    if (strcmp(name, "rank") == 0)
        found->ranks += atoi(value) == brv_group_rank(found->group);
    else if (strcmp(name, "transport") == 0)
        found->transports += strcmp(value, brv_group_transport(found->group)) == 0;
    else if (strcmp(name, "timeout") == 0)
        found->timeouts += strcmp(value, "12.5") == 0;
    /* A call that waits is refused here. */
    CHECK_FAILS(brv_recv(found->group, NULL, 0, BRV_U8, BRV_ANY, BRV_ANY, NULL, NULL), BRV_ERR_ARGUMENT,
                "callback");
}

static void settings(brv_group *group)
{
    struct found found = {0, 0, 0, 0, NULL};
    found.group = group;
    CHECK(brv_group_set_timeout(group, 12.5) == BRV_OK);
    CHECK(brv_group_settings(group, note, &found) == BRV_OK);
    CHECK(found.settings >= 8 && found.ranks == 1 && found.transports == 1 && found.timeouts == 1);
    CHECK_FAILS(brv_group_settings(group, NULL, NULL), BRV_ERR_ARGUMENT, "function is NULL");
    CHECK_FAILS(brv_group_settings(NULL, note, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK(brv_group_set_timeout(group, 60) == BRV_OK);
}

static void statistics(brv_group *group)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group), value = rank, other = -1;
    brv_statistics before = BRV_STATISTICS_INIT, after = BRV_STATISTICS_INIT;
    CHECK(brv_group_statistics(group, &before) == BRV_OK);
    CHECK(brv_send_recv(group, &value, 1, (rank + 1) % size, 1, &other, 1, BRV_ANY, 1, BRV_I32, NULL,
                        NULL) == BRV_OK);
    CHECK(brv_group_statistics(group, &after) == BRV_OK && after.size == sizeof after);
    if (size > 1) {
        CHECK(after.messages_sent > before.messages_sent && after.bytes_sent >= before.bytes_sent + 4);
        CHECK(after.messages_received > before.messages_received);
    }
    after.size = 8;
    CHECK_FAILS(brv_group_statistics(group, &after), BRV_ERR_ARGUMENT, "BRV_STATISTICS_INIT");
    CHECK_FAILS(brv_group_statistics(group, NULL), BRV_ERR_ARGUMENT, "statistics is NULL");
    CHECK(brv_group_statistics(NULL, &before) == BRV_ERR_ARGUMENT);
}

/* Waits, outside of any call, until the group is closed. */
static void closes(brv_group *group, brv_status expected, int32_t rank)
{
    struct timespec pause = {0, 1000000};
    int turns = 0;
    while (brv_group_status(group) == BRV_OK && turns++ < 30000)
        nanosleep(&pause, NULL);
    CHECK(brv_group_status(group) == expected);
    CHECK(brv_last_error_rank() == rank && strstr(brv_last_error(), "rank 1") != NULL);
    CHECK(brv_recv(group, NULL, 0, BRV_U8, 1, 5, NULL, NULL) == expected && brv_last_error_rank() == rank);
}

int main(int argc, char **argv)
{
    brv_group *group = join(), *alone = NULL;
    int32_t rank = brv_group_rank(group), other;

    CHECK(argc == 2);
    CHECK(brv_group_status(group) == BRV_OK);
    CHECK_FAILS(brv_group_status(NULL), BRV_ERR_ARGUMENT, "group is NULL");
    settings(group);
    statistics(group);

    CHECK(brv_group_solo(&alone) == BRV_OK && brv_group_status(alone) == BRV_OK);
    CHECK(brv_group_abort(alone) == BRV_OK);
    CHECK_FAILS(brv_group_status(alone), BRV_ERR_ABORTED, "abort");
    CHECK(brv_last_error_rank() == 0);
    brv_group_free(alone);

    /* Rank 1 knows that all others are ready. */
    if (rank != 1) {
        CHECK(brv_send(group, NULL, 0, BRV_U8, 1, 4, NULL) == BRV_OK);
        closes(group, strcmp(argv[1], "lost") == 0 ? BRV_ERR_PEER_LOST : BRV_ERR_ABORTED, 1);
        brv_group_free(group);
        return 0;
    }
    for (other = 0; other < brv_group_size(group); other++)
        if (other != 1)
            CHECK(brv_recv(group, NULL, 0, BRV_U8, other, 4, NULL, NULL) == BRV_OK);
    if (strcmp(argv[1], "lost") == 0)
        _exit(0); /* no destructor runs, as when a process is killed */
    CHECK(brv_group_abort(group) == BRV_OK);
    CHECK_FAILS(brv_group_status(group), BRV_ERR_ABORTED, "rank 1");
    CHECK(brv_last_error_rank() == 1);
    brv_group_free(group);
    return 0;
}
