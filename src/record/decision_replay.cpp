#include "record/decision_replay.hpp"

#include "core/pool_controller.hpp"
#include "record/decision_log.hpp"

#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <stdexcept>

namespace rankwise::record {

namespace {

using nlohmann::json;

core::timestamp time_of(const json& j, const char* field = "t") {
  return core::timestamp{core::duration{j.at(field).get<core::duration::rep>()}};
}

template <class E>
E enum_of(const json& j, const char* field, std::uint8_t count) {
  const auto value = j.at(field).get<unsigned>();
  if (value >= count)
    throw std::runtime_error(fmt::format("{}: {} is not below {}", field, value, count));
  return static_cast<E>(value);
}

core::rank_id rank_of(const json& j) {
  return {j.at("pool").get<std::uint16_t>(), j.at("rank").get<std::uint16_t>()};
}

std::string described(const core::placement_decision& d) {
  switch (d.what) {
  case core::placement_decision::kind::waits:
    return "waits";
  case core::placement_decision::kind::refused:
    return fmt::format("refused: {}", core::to_string(d.reason));
  case core::placement_decision::kind::placed:
    break;
  }
  return fmt::format("rank {}, epoch {}{}", d.rank, d.epoch, d.score ? fmt::format(", score {}", *d.score) : "");
}

core::placement_decision decision_of(const json& j) {
  core::placement_decision d;
  if (j.contains("waits")) {
    d.what = core::placement_decision::kind::waits;
  } else if (j.contains("refused")) {
    d.what = core::placement_decision::kind::refused;
    d.reason = static_cast<core::failure>(j["refused"].get<std::uint8_t>());
  } else {
    d.rank = j.at("to").get<std::uint16_t>();
    d.epoch = j.at("epoch").get<core::rank_epoch>();
    if (j.contains("score"))
      d.score = j["score"].get<double>();
  }
  return d;
}

/// Keeps the last decision of the controller that is asked again.
class last_decision final : public core::decision_recorder {
 public:
  core::placement_decision value;

  void decided(const core::leg_request&, const core::placement_decision& d) noexcept override { value = d; }
};

class replayer {
 public:
  replay_verdict verdict;

  /// False: nothing after this line is to be compared.
  bool take(const json& j) {
    const auto is = j.at("is").get<std::string>();
    if (is == "lost") {
      verdict.incomplete = fmt::format("line {}: {} lines were lost: {}", verdict.lines,
                                       j.at("lines").get<std::uint64_t>(), j.value("why", "out of memory"));
      return false;
    }
    const auto number = j.at("c").get<std::uint32_t>();
    if (is == "opened") {
      open(number, j);
      return true;
    }
    const auto found = controllers_.find(number);
    if (found == controllers_.end())
      throw std::runtime_error(fmt::format("c: controller {} was not opened before", number));
    auto& pool = *found->second.pool;
    if (is == "decided")
      return decide(found->second, number, j);
    if (is == "up") {
      core::rank_announcement up;
      up.rank = rank_of(j);
      up.epoch = j.at("epoch").get<core::rank_epoch>();
      up.kv_capacity = j.at("kv").get<std::uint64_t>();
      up.max_running = j.at("running").get<std::uint32_t>();
      up.chunk_tokens = j.at("chunk").get<std::uint64_t>();
      up.data_parallel_size = j.at("size").get<std::uint32_t>();
      up.renewed = j.at("renewed").get<bool>();
      up.state = enum_of<core::rank_state>(j, "state", core::rank_state_count);
      pool.rank_up(up, time_of(j));
    } else if (is == "paused") {
      pool.rank_paused(rank_of(j), j.at("epoch").get<core::rank_epoch>(),
                       enum_of<core::rank_state>(j, "state", core::rank_state_count));
    } else if (is == "down") {
      pool.rank_down(rank_of(j), j.at("epoch").get<core::rank_epoch>(),
                     enum_of<core::rank_state>(j, "state", core::rank_state_count));
    } else if (is == "progress") {
      progress(pool, j);
    } else if (is == "tick") {
      static_cast<void>(pool.ejections_over(time_of(j)));
    } else if (is == "released") {
      pool.release(j.at("handle").get<core::request_handle>(), time_of(j));
    } else if (is == "ended") {
      pool.end(j.at("handle").get<core::request_handle>(), time_of(j), j.at("generated").get<std::uint32_t>());
    } else if (is == "report") {
      core::load_report r;
      r.rank = rank_of(j);
      r.epoch = j.at("epoch").get<core::rank_epoch>();
      r.sequence = j.at("sequence").get<std::uint64_t>();
      r.received_at = time_of(j);
      r.num_running = j.at("running").get<std::uint32_t>();
      r.num_waiting = j.at("waiting").get<std::uint32_t>();
      r.kv_used_tokens = j.at("kv_used").get<std::uint64_t>();
      r.kv_total_tokens = j.at("kv_total").get<std::uint64_t>();
      pool.report(r);
    } else if (is == "restored") {
      restore(pool, j);
    } else if (is == "policy") {
      found->second.policy = j.at("policy").get<std::string>();
      if (!pool.set_policy(found->second.policy, time_of(j)))
        throw std::runtime_error(fmt::format("policy: no policy is named \"{}\"", found->second.policy));
    } else {
      throw std::runtime_error(fmt::format("is: \"{}\" is no kind of line", is));
    }
    return true;
  }

 private:
  struct controller {
    std::unique_ptr<last_decision> last;
    std::unique_ptr<core::pool_controller> pool;
    std::string policy;
    std::vector<std::uint64_t> blocks;
    core::request_handle blocks_of = 0;
  };

  void open(std::uint32_t number, const json& j) {
    const auto version = j.at("version").get<int>();
    if (version != decision_log_version)
      throw std::runtime_error(
          fmt::format("version: {} is not {}, the one that is read here", version, decision_log_version));
    const auto options = pool_options_of(j.at("options"));
    controller c;
    c.last = std::make_unique<last_decision>();
    c.policy = options.policy;
    c.pool = std::make_unique<core::pool_controller>(options, nullptr, core::decision_recorders{c.last.get()});
    controllers_[number] = std::move(c);
  }

  static void progress(core::pool_controller& pool, const json& j) {
    core::batch_progress p;
    p.rank = rank_of(j);
    p.epoch = j.at("epoch").get<core::rank_epoch>();
    p.generated_tokens = j.at("generated").get<std::uint64_t>();
    if (j.contains("first")) {
      j["first"].get_to(p.first_tokens);
      j.at("cached").get_to(p.first_cached);
    }
    if (j.contains("ended")) {
      j["ended"].get_to(p.ended);
      j.at("tokens").get_to(p.ended_tokens);
      j.at("errors").get_to(p.errors);
    }
    pool.progress(p, time_of(j));
  }

  static void restore(core::pool_controller& pool, const json& j) {
    std::vector<core::leg_record> legs;
    for (const auto& l : j.at("legs")) {
      core::leg_record leg;
      leg.handle = l.at("handle").get<core::request_handle>();
      leg.attempt = l.at("attempt").get<std::uint32_t>();
      leg.rank = rank_of(l);
      leg.epoch = l.at("epoch").get<core::rank_epoch>();
      leg.prefilled = l.at("prefilled").get<bool>();
      leg.released = l.at("released").get<bool>();
      auto request = std::make_shared<core::generate_request>();
      request->input_ids.resize(l.at("prompt").get<std::uint32_t>());
      request->sampling.max_new_tokens = l.at("most").get<std::int32_t>();
      leg.request = std::move(request);
      legs.push_back(std::move(leg));
    }
    static_cast<void>(pool.restore(legs, time_of(j)));
  }

  bool decide(controller& c, std::uint32_t number, const json& j) {
    core::leg_request leg;
    auto& w = leg.wanted;
    w.handle = j.at("handle").get<core::request_handle>();
    w.now = time_of(j);
    leg.attempt = j.at("attempt").get<std::uint32_t>();
    w.prompt_tokens = j.at("prompt").get<std::uint64_t>();
    w.max_new_tokens = j.at("most").get<std::uint64_t>();
    if (j.contains("pin"))
      leg.data_parallel_rank = j["pin"].get<std::int32_t>();
    if (j.contains("room"))
      w.bootstrap_room = j["room"].get<std::int64_t>();
    w.priority = j.value("priority", 0);
    if (j.contains("deadline"))
      w.deadline = time_of(j, "deadline");
    if (j.contains("first_by"))
      w.first_token_by = time_of(j, "first_by");
    w.may_wait = j.value("may_wait", false);
    w.block_tokens = j.at("block_tokens").get<std::uint32_t>();
    if (const auto blocks = j.find("blocks"); blocks != j.end()) {
      if (blocks->is_string()) {
        if (c.blocks_of != w.handle)
          throw std::runtime_error(fmt::format("blocks: those of {} are not the last ones", w.handle));
      } else {
        blocks->get_to(c.blocks);
        c.blocks_of = w.handle;
      }
      w.blocks = c.blocks;
    }
    const auto recorded = decision_of(j);
    static_cast<void>(c.pool->place(leg));
    if (c.last->value == recorded) {
      ++verdict.decisions;
      ++verdict.by_policy[c.policy];
      return true;
    }
    verdict.difference = {
        verdict.lines,           number, w.handle, core::to_seconds(w.now.time_since_epoch()), described(recorded),
        described(c.last->value)};
    return false;
  }

  std::map<std::uint32_t, controller> controllers_;
};

} // namespace

tl::expected<replay_verdict, std::string> replay_decisions(std::istream& log) {
  replayer r;
  std::string line;
  while (std::getline(log, line)) {
    ++r.verdict.lines;
    const bool cut = log.eof(); // every line that was written whole has its end
    if (cut) {
      r.verdict.incomplete = fmt::format("line {}: it is cut off", r.verdict.lines);
      break;
    }
    if (line.size() > decision_line_bytes_max)
      return tl::unexpected(
          fmt::format("line {}: it has {} bytes, more than {}", r.verdict.lines, line.size(), decision_line_bytes_max));
    const auto j = json::parse(line, nullptr, false);
    if (!j.is_object())
      return tl::unexpected(fmt::format("line {}: \"{:.60}\" is not a JSON object", r.verdict.lines, line));
    try {
      if (!r.take(j))
        break;
    } catch (const std::exception& e) {
      return tl::unexpected(fmt::format("line {}: {}", r.verdict.lines, e.what()));
    }
  }
  if (r.verdict.lines == 0)
    return tl::unexpected(std::string{"it is empty"});
  return std::move(r.verdict);
}

tl::expected<replay_verdict, std::string> replay_decisions(const std::filesystem::path& file) {
  std::ifstream in{file};
  if (!in)
    return tl::unexpected(file.string() + ": it cannot be read");
  auto verdict = replay_decisions(in);
  if (!verdict)
    return tl::unexpected(file.string() + ":" + verdict.error());
  return verdict;
}

} // namespace rankwise::record
