/* Errors are per thread, and a group may move between threads. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <pthread.h>

static void *other_thread(void *group)
{
    double value = 2;

    CHECK(strcmp(brv_last_error(), "") == 0 && brv_last_error_rank() == -1);
    CHECK(brv_all_reduce(group, &value, &value, 1, BRV_F64, BRV_SUM, NULL) == BRV_OK && value == 2);
    CHECK_FAILS(brv_barrier(NULL, NULL), BRV_ERR_ARGUMENT, "group is NULL");
    brv_group_free(group);
    return NULL;
}

int main(void)
{
    brv_group *group = NULL;
    const char *text;
    pthread_t thread;

    CHECK(brv_group_solo(&group) == BRV_OK);
    CHECK_FAILS(brv_broadcast(group, NULL, 1, BRV_F32, 0, NULL), BRV_ERR_ARGUMENT, "data is NULL");
    text = brv_last_error();
    CHECK(pthread_create(&thread, NULL, other_thread, group) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(strstr(text, "data is NULL") != NULL && brv_last_error() == text);
    return 0;
}
