/* Shared by the test programs: checks that print where they fail, and random numbers that are the same on
 * every rank. */
#ifndef CHECK_H
#define CHECK_H

#include <brevity.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition,          \
                    brv_last_error());                                                                       \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)

/* The call fails with this status, and its text has these words. */
#define CHECK_FAILS(call, status, words)                                                                     \
    do {                                                                                                     \
        CHECK((call) == (status));                                                                           \
        CHECK(strstr(brv_last_error(), words) != NULL);                                                      \
    } while (0)

/* A number from -limit to limit that any rank can compute for any other. */
static inline int number(uint32_t seed, int32_t rank, size_t index, int limit)
{
    uint64_t x = ((uint64_t)seed << 48) ^ ((uint64_t)rank << 32) ^ (uint64_t)index;
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    return (int)((x >> 33) % (uint64_t)(2 * limit + 1)) - limit;
}

/* Vectors and matrices for an exchange. */
static inline brv_status add_dense(brv_exchange *exchange, const char *name, size_t n)
{
    return brv_exchange_add(exchange, name, &n, 1, NULL);
}

static inline brv_status add_topk(brv_exchange *exchange, const char *name, size_t n, double density)
{
    brv_policy policy = BRV_POLICY_TOPK(density);

    return brv_exchange_add(exchange, name, &n, 1, &policy);
}

static inline brv_status add_gtopk(brv_exchange *exchange, const char *name, size_t n, double density)
{
    brv_policy policy = BRV_POLICY_GTOPK(density);

    return brv_exchange_add(exchange, name, &n, 1, &policy);
}

static inline brv_status add_low_rank(brv_exchange *exchange, const char *name, size_t rows, size_t cols,
                                      uint32_t rank)
{
    brv_policy policy = BRV_POLICY_LOW_RANK(rank);
    size_t shape[2];

    shape[0] = rows;
    shape[1] = cols;
    return brv_exchange_add(exchange, name, shape, 2, &policy);
}

static inline brv_group *join(void)
{
    brv_group *group = NULL;
    CHECK(brv_group_join(NULL, &group) == BRV_OK);
    CHECK(group != NULL);
    return group;
}

#endif
