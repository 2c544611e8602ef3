/* Three workers and a server, which wait for nobody: the second worker begins when the first has pushed a
 * hundred times; the third has built another server, and is refused. */
#define _DEFAULT_SOURCE
#include "job.h"

enum { N = 8, PUSHES = 100, STEPS = 10 };

static brv_server *make(brv_group *group, double density)
{
    static const float zeros[N];
    const float *parameters = zeros;
    const size_t shape[] = {N};
    brv_server_config config = BRV_SERVER_CONFIG_INIT;
    brv_server *server = NULL;

    config.method = BRV_SERVER_GRADIENT_DROPPING;
    config.density = density;
    config.servers = 1;
    CHECK(brv_server_new(group, &config, &server) == BRV_OK);
    CHECK(brv_server_add(server, "all", shape, 1) == BRV_OK);
    CHECK(brv_server_begin(server, &parameters, 1, NULL) == BRV_OK);
    return server;
}

/* All entries are pushed: the model is the sum of all pushes. */
static void works(brv_server *server, uint32_t steps, uint64_t clock)
{
    float parameters[N], gradients[N], *place = parameters;
    const float *gradient = gradients;
    brv_server_step figures = BRV_SERVER_STEP_INIT;
    brv_options options = within(60);
    uint32_t step;
    size_t i;

    CHECK(brv_server_fetch(server, &place, 1, &options) == BRV_OK);
    for (i = 0; i < N; i++) {
        gradients[i] = (float)i + 1;
        CHECK(parameters[i] == -(float)clock * gradients[i]);
    }
    for (step = 0; step < steps; step++) {
        CHECK(brv_server_take_step(server, &gradient, 1, &place, 1, &figures, &options) == BRV_OK);
        CHECK(figures.clock == ++clock);
        for (i = 0; i < N; i++) {
            CHECK(parameters[i] == -(float)clock * gradients[i]);
        }
    }
    CHECK(brv_server_leave(server, &options) == BRV_OK);
}

static void is_refused(brv_server *server)
{
    float parameters[N], *place = parameters;
    brv_options options = within(60);

    parameters[0] = 7;
    CHECK_FAILS(brv_server_fetch(server, &place, 1, &options), BRV_ERR_PROTOCOL,
                "a worker of another server: build equal ones. Here 1 tensors, 8 elements, 3 workers");
    CHECK(brv_last_error_rank() == 3 && parameters[0] == 7);
    CHECK(brv_server_leave(server, &options) == BRV_OK);
}

static void serves(brv_server *server)
{
    brv_server_statistics statistics = BRV_SERVER_STATISTICS_INIT;
    brv_options options = within(60);

    CHECK(brv_server_serve(server, BRV_FOREVER, &options) == BRV_OK);
    CHECK(brv_server_get_statistics(server, &statistics) == BRV_OK);
    CHECK(statistics.pushes == PUSHES + STEPS && statistics.refused == 1);
}

int main(void)
{
    brv_group *group = join();
    brv_options options = within(60);
    brv_server *server = NULL;
    char byte = 0;

    CHECK(brv_group_size(group) == 4);
    switch (brv_group_rank(group)) {
    case 0:
        server = make(group, 1);
        works(server, PUSHES, 0);
        CHECK(brv_send(group, &byte, 1, BRV_U8, 1, 7, &options) == BRV_OK);
        break;
    case 1:
        CHECK(brv_recv(group, &byte, 1, BRV_U8, 0, 7, NULL, &options) == BRV_OK);
        server = make(group, 1);
        works(server, STEPS, PUSHES);
        break;
    case 2:
        server = make(group, 0.5);
        is_refused(server);
        break;
    default:
        server = make(group, 1);
        serves(server);
    }
    brv_server_free(server);
    CHECK(brv_barrier(group, &options) == BRV_OK);
    brv_group_free(group);
    return 0;
}
