/* The environment is wrong: no group, and a text that names the variable. */
#include "check.h"

int main(void)
{
    float value;
    brv_group *group = (brv_group *)&value;
    brv_config config = BRV_CONFIG_INIT;
    brv_id id = {{0}};

    CHECK_FAILS(brv_group_join(NULL, &group), BRV_ERR_ENVIRONMENT, "BREVITY_RANK is \"three\"");
    CHECK(group == NULL && brv_last_error_rank() == -1);
    config.id = &id;
    CHECK_FAILS(brv_group_join(&config, &group), BRV_ERR_ENVIRONMENT,
                "BREVITY_RANK is \"three\"");
    CHECK(strstr(brv_last_error(), "beside config.id, set config.rank and config.world_size") != NULL);
    brv_group_free(group);
    return 0;
}
