/* Memory that ranks put to and get from: through keys in messages, with what is refused, and after the memory
 * and the group are freed. */
#define _POSIX_C_SOURCE 200809L
#include "job.h"
#include <time.h>

enum { BYTES = 100000 };

static uint8_t byte_of(int32_t rank, size_t i) { return (uint8_t)(i * 7 + (size_t)rank + 1); }

/* Sends this rank's key to the rank before, and opens the memory of the next. */
static brv_remote_memory *open_next(brv_group *group, const brv_memory_key *key)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group);
    int32_t next = (rank + 1) % size, before = (rank + size - 1) % size;
    brv_memory_key theirs;
    brv_remote_memory *memory = NULL;
    CHECK(brv_send_recv(group, key, sizeof *key, before, 1, &theirs, sizeof theirs, next, 1, BRV_U8, NULL,
                        NULL) == BRV_OK);
    CHECK(brv_remote_memory_open(group, next, &theirs, &memory) == BRV_OK && memory != NULL);
    return memory;
}

/* Both neighbours have come this far. */
static void meet(brv_group *group)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group);
    CHECK(brv_send_recv(group, NULL, 0, (rank + 1) % size, 2, NULL, 0, (rank + size - 1) % size, 2, BRV_U8,
                        NULL, NULL) == BRV_OK);
    CHECK(brv_send_recv(group, NULL, 0, (rank + size - 1) % size, 2, NULL, 0, (rank + 1) % size, 2, BRV_U8,
                        NULL, NULL) == BRV_OK);
}

static void put_and_get(brv_group *group, brv_remote_memory *next, const uint8_t *memory)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group);
    static const size_t LENGTHS[] = {0, 1, 1000, BYTES - 20};
    uint8_t *data = malloc(BYTES), *back = malloc(BYTES);
    size_t which, i;
    CHECK(data != NULL && back != NULL);
    for (which = 0; which < sizeof LENGTHS / sizeof *LENGTHS; which++) {
        size_t n = LENGTHS[which];
        for (i = 0; i < n; i++)
            data[i] = byte_of(rank, i);
        CHECK(brv_put(group, n == 0 ? NULL : data, n, next, 10, NULL) == BRV_OK);
        CHECK(brv_flush(group, (rank + 1) % size, NULL) == BRV_OK);
        meet(group);
        for (i = 0; i < n; i++)
            CHECK(memory[i + 10] == byte_of((rank + size - 1) % size, i));
        CHECK(memory[9] == 0xa5 && memory[n + 10] == 0xa5);
        CHECK(brv_get(group, back, n + 20, next, 0, NULL) == BRV_OK);
        CHECK(back[0] == 0xa5 && back[n + 10] == 0xa5 && memcmp(back + 10, data, n) == 0);
        meet(group);
    }
    free(data);
    free(back);
}

/* This rank's own memory. */
static void itself(brv_group *group, const brv_memory_key *key, const uint8_t *memory)
{
    int32_t rank = brv_group_rank(group);
    uint8_t data[3] = {1, 2, 3}, back[3] = {0};
    brv_remote_memory *opened = NULL;
    CHECK(brv_remote_memory_open(group, rank, key, &opened) == BRV_OK && opened != NULL);
    CHECK(brv_put(group, data, 3, opened, BYTES - 3, NULL) == BRV_OK);
    CHECK(brv_flush(group, rank, NULL) == BRV_OK);
    CHECK(memcmp(memory + BYTES - 3, data, 3) == 0);
    CHECK(brv_get(group, back, 3, opened, BYTES - 3, NULL) == BRV_OK && memcmp(back, data, 3) == 0);
    CHECK_FAILS(brv_put(group, data, 3, opened, BYTES - 2, NULL), BRV_ERR_ARGUMENT, "inside the region");
    brv_remote_memory_free(opened);
}

static void refused(brv_group *group, brv_remote_memory *next, const brv_memory_key *key)
{
    int32_t rank = brv_group_rank(group), size = brv_group_size(group);
    uint8_t data[100] = {0};
    brv_memory *memory = NULL;
    brv_remote_memory *remote = NULL;
    brv_memory_key wrong = *key, into;
    brv_group *alone = NULL;
    CHECK_FAILS(brv_put(group, data, 100, next, BYTES - 99, NULL), BRV_ERR_ARGUMENT, "inside the region");
    CHECK_FAILS(brv_get(group, data, 1, next, SIZE_MAX, NULL), BRV_ERR_ARGUMENT, "inside the region");
    CHECK_FAILS(brv_put(group, NULL, 1, next, 0, NULL), BRV_ERR_ARGUMENT, "data is NULL");
    CHECK_FAILS(brv_put(group, data, 1, NULL, 0, NULL), BRV_ERR_ARGUMENT, "to is NULL");
    CHECK_FAILS(brv_get(NULL, data, 1, next, 0, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    CHECK_FAILS(brv_flush(group, size, NULL), BRV_ERR_ARGUMENT, "to is ");
    CHECK_FAILS(brv_memory_register(group, NULL, 1, &memory, &into), BRV_ERR_ARGUMENT, "start is NULL");
    CHECK_FAILS(brv_memory_register(group, data, 1, &memory, NULL), BRV_ERR_ARGUMENT, "key is NULL");
    CHECK_FAILS(brv_memory_register(group, data, 1, NULL, &into), BRV_ERR_ARGUMENT, "memory is NULL");
    CHECK(memory == NULL);
    CHECK_FAILS(brv_remote_memory_open(group, -1, key, &remote), BRV_ERR_ARGUMENT, "owner is -1");
    /* This rank's key is none of the next rank's memory. */
    CHECK_FAILS(brv_remote_memory_open(group, (rank + 1) % size, &wrong, &remote), BRV_ERR_PROTOCOL, "a key");
    wrong.bytes[0] ^= 1;
    CHECK(brv_remote_memory_open(group, (rank + 1) % size, &wrong, &remote) == BRV_ERR_PROTOCOL);
    CHECK(brv_last_error_rank() == (rank + 1) % size);
    wrong.length = BRV_MEMORY_KEY_BYTES + 1;
    CHECK_FAILS(brv_remote_memory_open(group, (rank + 1) % size, &wrong, &remote), BRV_ERR_ARGUMENT,
                "key.length");
    CHECK(remote == NULL);
    CHECK(brv_group_solo(&alone) == BRV_OK);
    CHECK_FAILS(brv_put(alone, data, 1, next, 0, NULL), BRV_ERR_ARGUMENT, "another job");
    brv_group_free(alone);
    CHECK(brv_memory_free(NULL) == BRV_OK);
    brv_remote_memory_free(NULL);
    CHECK(brv_group_status(group) == BRV_OK);
}

/* The owner makes no progress for a while. */
static void in_time(brv_group *group, brv_remote_memory *next)
{
    struct timespec pause = {0, 300000000};
    uint8_t *data = malloc(BYTES);
    brv_status status;
    CHECK(data != NULL);
    if (brv_group_rank(group) == 1)
        nanosleep(&pause, NULL);
    else if (brv_group_rank(group) == 0) {
        brv_options soon = within(0.02);
        soon.name = "the weights";
        status = brv_get(group, data, BYTES, next, 0, &soon);
        CHECK(status == BRV_OK || status == BRV_ERR_TIMEOUT);
        if (status == BRV_ERR_TIMEOUT)
            CHECK(brv_last_error_rank() == 1 && strstr(brv_last_error(), "the weights: a get from") != NULL);
        status = brv_flush(group, 1, &soon);
        CHECK(status == BRV_OK || status == BRV_ERR_TIMEOUT);
    }
    meet(group);
    CHECK(brv_group_status(group) == BRV_OK);
    CHECK(brv_get(group, data, BYTES, next, 0, NULL) == BRV_OK && data[0] == 0xa5);
    meet(group);
    free(data);
}

/* Not on the stack: memory that is not given back is no leak. */
static uint8_t *own, *second;

int main(void)
{
    brv_group *group = join(), *pair = NULL;
    int32_t rank = brv_group_rank(group);
    uint8_t byte = 0;
    brv_memory *memory = NULL, *late = NULL;
    brv_memory_key key, late_key;
    brv_remote_memory *next, *late_next;
    brv_status status;

    own = malloc(BYTES);
    second = malloc(BYTES);
    CHECK(own != NULL && second != NULL);
    memset(own, 0xa5, BYTES);
    memset(second, 0x17, BYTES);
    CHECK(brv_memory_register(group, own, BYTES, &memory, &key) == BRV_OK && memory != NULL);
    CHECK(key.length > 0 && key.length <= BRV_MEMORY_KEY_BYTES);
    next = open_next(group, &key);
    put_and_get(group, next, own);
    refused(group, next, &key);
    in_time(group, next);
    itself(group, &key, own);

    /* Freed memory can't be accessed any more, if it was given back. */
    CHECK(brv_memory_register(group, second, BYTES, &late, &late_key) == BRV_OK);
    late_next = open_next(group, &late_key);
    CHECK(brv_get(group, &byte, 1, late_next, BYTES - 1, NULL) == BRV_OK && byte == 0x17);
    meet(group);
    status = brv_memory_free(late);
    CHECK(status == BRV_OK || status == BRV_PENDING);
    meet(group);
    if (status == BRV_OK) {
        memset(second, 0, BYTES);
        free(second);
        CHECK_FAILS(brv_get(group, &byte, 1, late_next, 0, NULL), BRV_ERR_TRANSPORT, "unregistered");
        CHECK(brv_group_status(group) == BRV_OK);
    }
    meet(group);
    brv_remote_memory_free(late_next);

    /* The regions keep the job: the one group is freed, and another one goes on with them. */
    CHECK(brv_group_duplicate(group, &pair, NULL) == BRV_OK);
    brv_group_free(group);
    byte = byte_of(rank, 0);
    CHECK(brv_put(pair, &byte, 1, next, 0, NULL) == BRV_OK);
    CHECK(brv_flush(pair, (rank + 1) % brv_group_size(pair), NULL) == BRV_OK);
    meet(pair);
    CHECK(own[0] == byte_of((rank + brv_group_size(pair) - 1) % brv_group_size(pair), 0));
    meet(pair);
    brv_group_free(pair);
    brv_remote_memory_free(next);
    status = brv_memory_free(memory);
    CHECK(status == BRV_OK || status == BRV_PENDING);
    if (status == BRV_OK)
        free(own);
    return 0;
}
