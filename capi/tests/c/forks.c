/* Rank 1 forks a child, which inherits everything of the rank: `forks WAY`.
 *
 * `drops`: the child frees its copies of a server and of the group and exits, and the job goes on.
 * `calls`: the child's calls are refused, and the job goes on; a group of the child itself works.
 * `dies`: the rank is killed while the child lives; the others still notice. */
#define _POSIX_C_SOURCE 200809L
#include "check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* A server whose threads do not exist in the child. */
static brv_server *serve(brv_group *group)
{
    static const float zeros[64] = {0};
    static const size_t shape[] = {64};
    const float *parameters = zeros;
    brv_server_config config = BRV_SERVER_CONFIG_INIT;
    brv_server *server = NULL;

    CHECK(brv_server_new(group, &config, &server) == BRV_OK);
    CHECK(brv_server_add(server, "all", shape, 1) == BRV_OK);
    CHECK(brv_server_begin(server, &parameters, 1, NULL) == BRV_OK);
    return server;
}

static void drop(brv_group *group, brv_server *server)
{
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        CHECK_FAILS(brv_server_serve(server, 0, NULL), BRV_ERR_ARGUMENT, "made before fork");
        brv_server_free(server);
        brv_group_free(group);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* All calls that would need a peer, with the words of the error. */
static void refused(brv_group *group, brv_exchange *exchange, brv_feedback *feedback)
{
    static float data[64], all[3 * 64];
    float *gradients[1] = {data};
    brv_group *made = group, *leaders = group;
    brv_feedback *fresh = NULL;

    CHECK_FAILS(brv_barrier(group, NULL), BRV_ERR_ARGUMENT, "made before fork");
    CHECK_FAILS(brv_broadcast(group, data, 64, BRV_F32, 1, NULL), BRV_ERR_ARGUMENT, "made before fork");
    CHECK_FAILS(brv_all_reduce(group, data, data, 64, BRV_F32, BRV_SUM, NULL), BRV_ERR_ARGUMENT,
                "made before fork");
    CHECK_FAILS(brv_all_gather(group, data, all, 64, BRV_F32, NULL), BRV_ERR_ARGUMENT, "made before fork");
    CHECK_FAILS(brv_group_split(group, 0, 0, &made, NULL), BRV_ERR_ARGUMENT, "made before fork");
    CHECK(made == NULL);
    CHECK_FAILS(brv_group_duplicate(group, &made, NULL), BRV_ERR_ARGUMENT, "made before fork");
    CHECK_FAILS(brv_group_hosts(group, &made, &leaders, NULL), BRV_ERR_ARGUMENT, "made before fork");
    CHECK_FAILS(brv_gtopk_average(group, feedback, data, 64, 0.1, NULL), BRV_ERR_ARGUMENT,
                "made before fork");
    CHECK(brv_feedback_new(&fresh) == BRV_OK);
    CHECK_FAILS(brv_low_rank_average(group, fresh, data, 8, 8, 1, NULL), BRV_ERR_ARGUMENT,
                "made before fork");
    CHECK_FAILS(brv_exchange_average(exchange, gradients, 1, NULL), BRV_ERR_ARGUMENT, "made before fork");
    CHECK(brv_group_abort(group) == BRV_ERR_ARGUMENT);
    brv_feedback_free(fresh);
}

/* The child of a child, too. */
static void call(brv_group *group)
{
    float data[64] = {1}, *gradients[1] = {data};
    brv_exchange *exchange = NULL;
    brv_feedback *feedback = NULL;
    brv_group *own = NULL;
    int status;
    pid_t child;

    CHECK(brv_feedback_new(&feedback) == BRV_OK && brv_exchange_new(group, &exchange) == BRV_OK);
    CHECK(add_dense(exchange, "data", 64) == BRV_OK);
    CHECK(brv_group_solo(&own) == BRV_OK);
    CHECK(brv_gtopk_average(own, feedback, data, 64, 0.1, NULL) == BRV_OK);
    CHECK(brv_feedback_rejoin(feedback, group) == BRV_OK);
    brv_group_free(own);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        alarm(60);
        refused(group, exchange, feedback);
        child = fork();
        CHECK(child >= 0);
        if (child == 0)
            refused(group, exchange, feedback);
        else
            CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
        /* What was made here works here. */
        CHECK(brv_group_solo(&own) == BRV_OK && brv_barrier(own, NULL) == BRV_OK);
        CHECK(brv_exchange_rejoin(exchange, own) == BRV_OK && brv_feedback_rejoin(feedback, own) == BRV_OK);
        CHECK(brv_exchange_average(exchange, gradients, 1, NULL) == BRV_OK);
        CHECK(brv_gtopk_average(own, feedback, data, 64, 0.1, NULL) == BRV_OK);
        brv_group_free(own);
        brv_exchange_free(exchange);
        brv_feedback_free(feedback);
        brv_group_free(group);
        exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    brv_exchange_free(exchange);
    brv_feedback_free(feedback);
}

static void die(void)
{
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        /* Longer than any rank waits. The launcher ends the child. */
        sleep(100);
        _exit(0);
    }
    raise(SIGKILL);
}

int main(int argc, char **argv)
{
    float data[1000] = {0}, one;
    brv_server *server = NULL;
    brv_group *group = join();
    brv_status status = brv_barrier(group, NULL);
    int i;

    /* Rank 1 may be dead before the others have left the barrier. */
    CHECK(argc == 2 && (status == BRV_OK || strcmp(argv[1], "dies") == 0));
    if (strcmp(argv[1], "dies") == 0) {
        if (brv_group_rank(group) == 1)
            die();
        while (status == BRV_OK)
            status = brv_all_reduce(group, data, data, 1000, BRV_F32, BRV_SUM, NULL);
        CHECK(status == BRV_ERR_PEER_LOST && brv_last_error_rank() == 1);
    } else {
        if (strcmp(argv[1], "drops") == 0)
            server = serve(group);
        if (brv_group_rank(group) == 1)
            server == NULL ? call(group) : drop(group, server);
        for (i = 0; i < 100; i++) {
            CHECK(brv_all_reduce(group, data, data, 1000, BRV_F32, BRV_SUM, NULL) == BRV_OK);
            one = 1;
            CHECK(brv_all_reduce(group, &one, &one, 1, BRV_F32, BRV_SUM, NULL) == BRV_OK && one == 3);
        }
        if (server != NULL)
            CHECK(brv_server_leave(server, NULL) == BRV_OK);
    }
    brv_server_free(server);
    brv_group_free(group);
    return 0;
}
