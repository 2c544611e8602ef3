/* Messages of known and unknown length, of a rank and of any, to others and to oneself; what is refused, what
 * is too long, and what does not come in time. */
#include "job.h"

static const size_t COUNTS[] = {0, 1, 100, 50000, 300001};

static int32_t element(int32_t rank, size_t i) { return number(5, rank, i, 1000000); }

static int32_t *elements(int32_t rank, size_t n)
{
    int32_t *data = malloc((n + 1) * sizeof *data);
    size_t i;
    CHECK(data != NULL);
    for (i = 0; i < n; i++)
        data[i] = element(rank, i);
    return data;
}

static void check_elements(const int32_t *data, int32_t rank, size_t n)
{
    size_t i;
    for (i = 0; i < n; i++)
        CHECK(data[i] == element(rank, i));
}

static void check_message(brv_message message, int32_t source, int32_t tag, size_t n)
{
    CHECK(message.source == source && message.tag == tag && message.bytes == n * sizeof(int32_t));
}

/* Each sends to the next, and to itself if it is alone. */
static void around(brv_group *group, size_t n)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group);
    int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    int32_t *mine = elements(rank, n), *place = malloc((n + 10) * sizeof *place);
    brv_message message;
    CHECK(place != NULL);

    CHECK(brv_send_recv(group, mine, n, next, 1, place, n, before, 1, BRV_I32, &message, NULL) == BRV_OK);
    check_message(message, before, 1, n);
    check_elements(place, before, n);

    /* More place than is needed, and any source. */
    CHECK(brv_send_recv(group, mine, n, next, 7, place, n + 10, BRV_ANY, 7, BRV_I32, NULL, NULL) ==
          BRV_OK);
    check_elements(place, before, n);

    /* A length that the receiver learns. */
    while (brv_try_send(group, mine, n, BRV_I32, next, INT32_MAX) == BRV_PENDING) {
    }
    CHECK(brv_probe(group, BRV_ANY, INT32_MAX, &message, NULL) == BRV_OK);
    check_message(message, before, INT32_MAX, n);
    memset(&message, 0, sizeof message);
    CHECK(brv_try_probe(group, before, INT32_MAX, &message) == BRV_OK);
    check_message(message, before, INT32_MAX, n);
    CHECK(brv_recv(group, place, n, BRV_I32, message.source, message.tag, &message, NULL) == BRV_OK);
    check_elements(place, before, n);
    check_message(message, before, INT32_MAX, n);
    free(mine);
    free(place);
}

/* All others send to rank 0. */
static void any_source(brv_group *group)
{
    enum { EACH = 20 };
    int32_t rank = brv_group_rank(group), size = brv_group_size(group), turn, next[8] = {0};
    if (rank > 0) {
        int32_t *mine = elements(rank, 100);
        for (turn = 0; turn < EACH; turn++)
            CHECK(brv_send(group, mine, (size_t)turn, BRV_I32, 0, turn, NULL) == BRV_OK);
        free(mine);
        /* Rank 0, which takes any tag, has all of these. */
        CHECK(brv_recv(group, NULL, 0, BRV_U8, 0, 999, NULL, NULL) == BRV_OK);
        return;
    }
    for (turn = 0; turn < EACH * (size - 1); turn++) {
        int32_t place[EACH];
        brv_message message;
        CHECK(brv_recv(group, place, EACH, BRV_I32, BRV_ANY, BRV_ANY, &message, NULL) == BRV_OK);
        CHECK(message.source > 0 && message.source < size);
        check_message(message, message.source, next[message.source]++, (size_t)message.tag);
        check_elements(place, message.source, (size_t)message.tag);
    }
    for (turn = 1; turn < size; turn++)
        CHECK(brv_send(group, NULL, 0, BRV_U8, turn, 999, NULL) == BRV_OK);
}

static void to_oneself(brv_group *group)
{
    int32_t rank = brv_group_rank(group), *mine = elements(rank, 1000), place[1000];
    brv_message message;
    CHECK(brv_try_probe(group, rank, BRV_ANY, &message) == BRV_PENDING);
    CHECK(brv_send(group, mine, 1000, BRV_I32, rank, 3, NULL) == BRV_OK);
    CHECK(brv_try_send(group, mine, 10, BRV_I32, rank, 4) == BRV_OK);
    CHECK(brv_recv(group, place, 1000, BRV_I32, rank, 4, &message, NULL) == BRV_OK);
    check_message(message, rank, 4, 10);
    CHECK(brv_recv(group, place, 1000, BRV_I32, rank, BRV_ANY, &message, NULL) == BRV_OK);
    check_message(message, rank, 3, 1000);
    check_elements(place, rank, 1000);
    free(mine);
}

static void truncated(brv_group *group)
{
    int32_t rank = brv_group_rank(group), mine[10] = {0}, place[10], from;
    uint8_t odd[3] = {1, 2, 3};
    size_t way;
    for (way = 0; way < 2; way++) {
        from = way == 0 ? rank : BRV_ANY;
        CHECK(brv_send(group, mine, 10, BRV_I32, rank, 3, NULL) == BRV_OK);
        CHECK_FAILS(brv_recv(group, place, 9, BRV_I32, from, 3, NULL, NULL), BRV_ERR_TRUNCATED, "40 bytes");
        CHECK(brv_last_error_rank() == brv_group_world_rank(group, rank));
        CHECK(brv_send(group, odd, 3, BRV_U8, rank, 3, NULL) == BRV_OK);
        CHECK_FAILS(brv_recv(group, place, 10, BRV_I32, from, 3, NULL, NULL), BRV_ERR_TRUNCATED, "3 bytes");
    }
    CHECK(brv_group_status(group) == BRV_OK);
}

/* What does not come, or is not taken, in time closes nothing. */
static void in_time(brv_group *group)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group), place[10];
    brv_options soon = within(0.02);
    brv_message message;
    soon.name = "the weights";
    CHECK_FAILS(brv_recv(group, place, 10, BRV_I32, rank, 9, NULL, &soon), BRV_ERR_TIMEOUT, "the weights: ");
    CHECK_FAILS(brv_recv(group, place, 10, BRV_I32, BRV_ANY, 9, NULL, &soon), BRV_ERR_TIMEOUT, "any rank");
    CHECK(brv_last_error_rank() == -1);
    CHECK(brv_recv(group, place, 10, BRV_I32, (rank + 1) % size, 9, NULL, &soon) == BRV_ERR_TIMEOUT);
    CHECK(brv_last_error_rank() == (rank + 1) % size);
    CHECK(brv_probe(group, BRV_ANY, 9, &message, &soon) == BRV_ERR_TIMEOUT);
    CHECK(brv_try_probe(group, BRV_ANY, 9, &message) == BRV_PENDING);
    CHECK(brv_group_status(group) == BRV_OK);
}

/* Nothing more is sent without waiting to a rank that does not take what was sent. */
static void not_taken(brv_group *group)
{
    const size_t n = 500000;
    int32_t rank = brv_group_rank(group), size = brv_group_size(group);
    int32_t *data = elements(rank, n), token = 1;
    if (size > 1 && rank == 0) {
        brv_options soon = within(0.05);
        CHECK(brv_try_send(group, data, n, BRV_I32, 1, 5) == BRV_OK);
        CHECK(brv_try_send(group, data, n, BRV_I32, 1, 5) == BRV_PENDING);
        CHECK(brv_send(group, data, n, BRV_I32, 1, 6, &soon) == BRV_ERR_TIMEOUT);
        CHECK(brv_send(group, &token, 1, BRV_I32, 1, 8, NULL) == BRV_OK);
    } else if (rank == 1) {
        CHECK(brv_recv(group, &token, 1, BRV_I32, 0, 8, NULL, NULL) == BRV_OK);
        memset(data, 0, n * sizeof *data);
        CHECK(brv_recv(group, data, n, BRV_I32, 0, 5, NULL, NULL) == BRV_OK);
        check_elements(data, 0, n);
    }
    free(data);
}

static void refused(brv_group *group)
{
    int32_t data[10] = {0}, size = brv_group_size(group);
    char *odd = (char *)data + 1;
    brv_message message;
    brv_options wrong = BRV_OPTIONS_INIT;
    wrong.size = 8;
    CHECK_FAILS(brv_send(NULL, data, 1, BRV_I32, 0, 0, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_send(group, NULL, 1, BRV_I32, 0, 0, NULL), BRV_ERR_ARGUMENT, "data is NULL");
    CHECK_FAILS(brv_send(group, odd, 1, BRV_I32, 0, 0, NULL), BRV_ERR_ARGUMENT, "multiple of 4");
    CHECK_FAILS(brv_send(group, data, 1, (brv_type)99, 0, 0, NULL), BRV_ERR_ARGUMENT, "type is 99");
    CHECK_FAILS(brv_send(group, data, 1, BRV_I32, size, 0, NULL), BRV_ERR_ARGUMENT, "to is ");
    CHECK_FAILS(brv_send(group, data, 1, BRV_I32, BRV_ANY, 0, NULL), BRV_ERR_ARGUMENT, "to is -1");
    CHECK_FAILS(brv_send(group, data, 1, BRV_I32, 0, BRV_ANY, NULL), BRV_ERR_ARGUMENT, "tag is -1");
    CHECK_FAILS(brv_send(group, data, SIZE_MAX, BRV_I32, 0, 0, NULL), BRV_ERR_ARGUMENT, "data has");
    CHECK_FAILS(brv_send(group, data, 1, BRV_I32, 0, 0, &wrong), BRV_ERR_ARGUMENT, "options.size");
    CHECK_FAILS(brv_try_send(group, data, 1, BRV_I32, -2, 0), BRV_ERR_ARGUMENT, "to is -2");
    CHECK_FAILS(brv_recv(group, data, 1, BRV_I32, -2, 0, NULL, NULL), BRV_ERR_ARGUMENT, "from is -2");
    CHECK_FAILS(brv_recv(group, data, 1, BRV_I32, 0, -2, NULL, NULL), BRV_ERR_ARGUMENT, "tag is -2");
    CHECK_FAILS(brv_recv(group, NULL, 1, BRV_I32, 0, 0, NULL, NULL), BRV_ERR_ARGUMENT, "data is NULL");
    CHECK_FAILS(brv_recv(group, data, 1, BRV_I32, 0, 0, (brv_message *)(void *)odd, NULL), BRV_ERR_ARGUMENT,
                "message is ");
    CHECK_FAILS(brv_probe(group, 0, 0, NULL, NULL), BRV_ERR_ARGUMENT, "message is NULL");
    CHECK_FAILS(brv_try_probe(group, size, 0, &message), BRV_ERR_ARGUMENT, "from is ");
    CHECK_FAILS(brv_send_recv(group, data, 6, 0, 0, data + 5, 5, 0, 0, BRV_I32, NULL, NULL), BRV_ERR_ARGUMENT,
                "data and place overlap");
    CHECK_FAILS(brv_send_recv(group, data, 5, 0, 0, data + 5, 5, 0, -3, BRV_I32, NULL, NULL),
                BRV_ERR_ARGUMENT, "place_tag is -3");
    CHECK(brv_try_probe(group, BRV_ANY, 77, &message) == BRV_PENDING);
}

/* All ranks have come this far. */
static void meet(brv_group *group)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group), other;
    for (other = 0; other < size; other++)
        CHECK(brv_send(group, NULL, 0, BRV_U8, other, 1000, NULL) == BRV_OK);
    for (other = 0; other < size; other++)
        CHECK(brv_recv(group, NULL, 0, BRV_U8, (rank + other) % size, 1000, NULL, NULL) == BRV_OK);
}

int main(void)
{
    brv_group *group = join();
    size_t i;
    for (i = 0; i < sizeof COUNTS / sizeof *COUNTS; i++) {
        around(group, COUNTS[i]);
        meet(group);
    }
    any_source(group);
    meet(group);
    to_oneself(group);
    truncated(group);
    refused(group);
    meet(group);
    in_time(group);
    meet(group);
    not_taken(group);
    meet(group);
    brv_group_free(group);
    return 0;
}
