/* Calls on a parameter server that do not block: two workers that wait for each other, and a server. The
 * argument says what the first worker frees while it waits: its server, or its group, too. */
#define _DEFAULT_SOURCE
#include "job.h"

static const float GRADIENT[2] = {1, -2};

static brv_server *make(brv_group *group)
{
    static const float zeros[2];
    const float *parameters = zeros;
    const size_t shape[] = {2};
    brv_server_config config = BRV_SERVER_CONFIG_INIT;
    brv_server *server = NULL;

    config.servers = 1;
    config.staleness = 0;
    config.patience = BRV_FOREVER;
    CHECK(brv_server_new(group, &config, &server) == BRV_OK);
    CHECK(brv_server_add(server, "all", shape, 1) == BRV_OK);
    CHECK(brv_server_begin(server, &parameters, 1, NULL) == BRV_OK);
    return server;
}

static void meet(brv_group *group)
{
    brv_options options = within(60);

    CHECK(brv_barrier(group, &options) == BRV_OK);
}

/* The first worker may free its group before others have left this. */
static void may_meet(brv_group *group)
{
    brv_options options = within(60);
    brv_status status = brv_barrier(group, &options);

    CHECK(status == BRV_OK || status == BRV_ERR_ABORTED);
}

static void count(brv_request *request, void *user_data)
{
    CHECK(brv_request_test(request) == BRV_OK);
    ++*(int *)user_data;
}

static brv_status ended(brv_request *request)
{
    brv_status status = brv_request_wait(request, BRV_FOREVER);

    brv_request_free(request);
    return status;
}

/* It is ahead of the other one, so its answers are held back. */
static void waits(brv_group *group, brv_server *server, int frees_group)
{
    float parameters[2] = {7, 7}, *place = parameters;
    const float *gradient = GRADIENT;
    brv_server_step figures = BRV_SERVER_STEP_INIT;
    brv_options options = within(60), soon = within(0.1);
    brv_request *request = NULL, *other = NULL;
    int calls = 0;

    CHECK_FAILS(brv_iserver_pull(server, &place, 1, NULL, &request, &options), BRV_ERR_ARGUMENT, "fetch");
    CHECK(request == NULL);
    CHECK(brv_iserver_fetch(server, &place, 1, &request, &options) == BRV_OK);
    CHECK(ended(request) == BRV_OK && parameters[0] == 0 && parameters[1] == 0);
    meet(group);
    CHECK_FAILS(brv_iserver_take_step(server, &gradient, 1, &place, 2, NULL, &request, &options),
                BRV_ERR_ARGUMENT, "tensors is 2");
    figures.size = 3;
    CHECK_FAILS(brv_iserver_take_step(server, &gradient, 1, &place, 1, &figures, &request, &options),
                BRV_ERR_ARGUMENT, "step->size is 3");
    figures.size = sizeof figures;
    CHECK(brv_iserver_take_step(server, &gradient, 1, &place, 1, &figures, &request, &options) == BRV_OK);
    CHECK(brv_request_wait(request, 0.05) == BRV_PENDING);
    CHECK_FAILS(brv_server_pull(server, &place, 1, NULL, &options), BRV_ERR_ARGUMENT, "in use by a call");
    CHECK_FAILS(brv_iserver_pull(server, &place, 1, NULL, &other, &options), BRV_ERR_ARGUMENT, "in use");
    CHECK(brv_server_is_worker(server) == -1 && other == NULL);
    CHECK(brv_request_cancel(request) == BRV_OK);
    CHECK(ended(request) == BRV_ERR_CANCELED && figures.clock == 0 && brv_server_is_worker(server) == 1);
    CHECK(brv_iserver_pull(server, &place, 1, &figures, &request, &soon) == BRV_OK);
    CHECK(ended(request) == BRV_ERR_TIMEOUT && brv_last_error_rank() == 2);
    /* Of a freed request the server comes back, too. */
    CHECK(brv_iserver_pull(server, &place, 1, &figures, &request, &soon) == BRV_OK);
    brv_request_free(request);
    while (brv_server_is_worker(server) == -1) {
        CHECK(strstr(brv_last_error(), "in use by a call") != NULL);
        brv_group_progress(group);
    }
    CHECK(brv_iserver_pull(server, &place, 1, &figures, &request, &options) == BRV_OK);
    CHECK(brv_request_on_end(request, count, &calls) == BRV_OK && parameters[0] == 0);
    meet(group);
    CHECK(ended(request) == BRV_OK && calls == 1);
    /* The other one may have pushed before this answer was made. */
    CHECK(figures.clock == 1 || figures.clock == 2);
    CHECK(parameters[0] == -(float)figures.clock && parameters[1] == 2 * (float)figures.clock);
    meet(group);
    CHECK(brv_iserver_take_step(server, &gradient, 1, &place, 1, NULL, &request, &options) == BRV_OK);
    CHECK(brv_request_wait(request, 0.02) == BRV_PENDING);
    brv_server_free(server);
    CHECK(brv_request_wait(request, 0.02) == BRV_PENDING);
    if (frees_group) {
        /* The call ends with it. */
        brv_group_free(group);
        CHECK(ended(request) == BRV_ERR_CANCELED);
    } else {
        brv_request_free(request);
        CHECK(brv_send(group, "x", 1, BRV_U8, 1, 7, &options) == BRV_OK);
        brv_group_free(group);
    }
}

static void follows(brv_group *group, brv_server *server, int frees_group)
{
    float parameters[2], *place = parameters;
    const float *gradient = GRADIENT;
    brv_options options = within(60);
    brv_status status;
    char byte;

    CHECK(brv_server_fetch(server, &place, 1, &options) == BRV_OK);
    meet(group);
    meet(group);
    CHECK(brv_server_take_step(server, &gradient, 1, &place, 1, NULL, &options) == BRV_OK);
    may_meet(group);
    /* Until the first worker waits no longer: it would not wait for one that has left. */
    status = brv_recv(group, &byte, 1, BRV_U8, 0, 7, NULL, &options);
    CHECK(status == (frees_group ? BRV_ERR_ABORTED : BRV_OK));
    CHECK(brv_server_leave(server, &options) == BRV_OK);
    brv_server_free(server);
    brv_group_free(group);
}

/* It finds that nothing is heard of the workers, over calls that follow each other, too. */
static void serves(brv_group *group, brv_server *server)
{
    brv_server_statistics statistics = BRV_SERVER_STATISTICS_INIT;
    brv_options options = within(60), silence = within(0.3);
    brv_status status;

    meet(group);
    meet(group);
    CHECK_FAILS(brv_server_serve(server, BRV_FOREVER, &silence), BRV_ERR_TIMEOUT, "heard");
    CHECK(brv_last_error_rank() == 0);
    while ((status = brv_server_serve(server, 0.01, &silence)) == BRV_PENDING) {
    }
    CHECK(status == BRV_ERR_TIMEOUT);
    CHECK(brv_server_serve(server, 0.01, &options) == BRV_PENDING);
    may_meet(group);
    CHECK(brv_server_serve(server, BRV_FOREVER, &options) == BRV_OK);
    CHECK(brv_server_get_statistics(server, &statistics) == BRV_OK && statistics.refused == 0);
    CHECK(statistics.pushes == 3);
    brv_server_free(server);
    brv_group_free(group);
}

/* A callback may free everything. */
static void free_all(brv_request *request, void *user_data)
{
    brv_server_free(user_data);
    brv_request_free(request);
}

static void alone(void)
{
    static const float zeros[2];
    float parameters[2] = {7, 7}, *place = parameters;
    const float *begins = zeros;
    const size_t shape[] = {2};
    brv_server_config config = BRV_SERVER_CONFIG_INIT;
    brv_server *server = NULL;
    brv_request *request = NULL;
    brv_group *group = NULL;
    int i;

    for (i = 0; i < 3; i++) {
        CHECK(brv_group_solo(&group) == BRV_OK);
        CHECK(brv_server_new(group, &config, &server) == BRV_OK);
        CHECK(brv_server_add(server, "all", shape, 1) == BRV_OK);
        CHECK(brv_server_begin(server, &begins, 1, NULL) == BRV_OK);
        CHECK(brv_iserver_fetch(server, &place, 1, &request, NULL) == BRV_OK);
        if (i == 0) {
            CHECK(ended(request) == BRV_OK && parameters[0] == 0 && parameters[1] == 0);
            CHECK(brv_server_leave(server, NULL) == BRV_OK);
            CHECK_FAILS(brv_iserver_fetch(server, &place, 1, &request, NULL), BRV_ERR_ARGUMENT, "has ended");
            brv_server_free(server);
        } else if (i == 1) {
            CHECK(brv_request_on_end(request, free_all, server) == BRV_OK);
        } else {
            brv_server_free(server);
            brv_request_free(request);
        }
        brv_group_free(group);
    }
}

int main(int argc, char **argv)
{
    brv_group *group = join();
    brv_server *server = make(group);
    int frees_group = argc == 2 && strcmp(argv[1], "group") == 0;

    CHECK(argc == 2 && brv_group_size(group) == 3);
    alone();
    switch (brv_group_rank(group)) {
    case 0:
        waits(group, server, frees_group);
        break;
    case 1:
        follows(group, server, frees_group);
        break;
    default:
        serves(group, server);
    }
    return 0;
}
