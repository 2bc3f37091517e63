#pragma once

#include "messages/dp_controller.hpp"
#include "messages/dp_rank.hpp"
#include "messages/introspector.hpp"
#include "messages/load_forwarder.hpp"
#include "messages/request_manager.hpp"
#include "messages/supervisor.hpp"

#include <caf/fwd.hpp>
#include <caf/type_id.hpp>

/// The numbers of all message types. Append only: scripts/check compares the order with what was committed.
CAF_BEGIN_TYPE_ID_BLOCK(rankwise, caf::first_custom_type_id)

  CAF_ADD_TYPE_ID(rankwise, (rankwise::submit_request))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::cancel_request))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::abort_request))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::core::output_batch))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::core::placement))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::core::refusal))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::rank_lost))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::rank_route))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::peer_changed))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::request_list))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::core::request_counts))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::actor_status))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::core::pool_orders))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::core::batch_progress))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::load_update))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::rank_up))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::rank_not_up))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::dispatch_failed))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::core::owner_legs))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::pool_view))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::link_event))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::dispatch_order))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::close_order))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::legs_on_rank))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::outstanding_work))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::restart_child))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::crash_child))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::child_list))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::node_snapshot))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::rank_actor_lost))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::rank_command))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::rank_command_result))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::placement_query))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::placement_list))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::policy_change))
  CAF_ADD_TYPE_ID(rankwise, (rankwise::policy_change_result))

CAF_END_TYPE_ID_BLOCK(rankwise)
