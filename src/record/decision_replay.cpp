#include "record/decision_replay.hpp"

#include "core/placement/pool_controller.hpp"
#include "record/decision_log.hpp"
#include "record/json_fields.hpp"

#include <fmt/format.h>

#include <fstream>
#include <memory>
#include <stdexcept>

namespace rankwise::record {

namespace {

using nlohmann::json;

core::timestamp time_of(const json& j, const char* field = "t") {
  return core::timestamp{core::duration{number<core::duration::rep>(j, field)}};
}

template <class E>
E enum_of(const json& j, const char* field, std::uint8_t count) {
  return static_cast<E>(number<std::uint8_t>(j, field, static_cast<std::uint8_t>(count - 1)));
}

/// Of a leg that is restored; longer ones are no requests.
constexpr std::uint32_t prompt_tokens_max = 1U << 26;

core::rank_id rank_of(const json& j) {
  return {number<std::uint16_t>(j, "pool"), number<std::uint16_t>(j, "rank")};
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
    d.reason = enum_of<core::failure>(j, "refused", core::failure_count);
  } else {
    d.rank = number<std::uint16_t>(j, "to");
    d.epoch = number<core::rank_epoch>(j, "epoch");
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

/// Line by line, with a bound for each.
class line_reader {
 public:
  explicit line_reader(std::istream& in) : in_(in) {}

  /// False: there is none.
  bool next() {
    text_.clear();
    do {
      in_.clear(in_.rdstate() & ~std::ios::failbit);
      in_.getline(piece_.data(), static_cast<std::streamsize>(piece_.size()));
      text_.append(piece_.data());
    } while (in_.fail() && !in_.eof() && !in_.bad() && !too_long());
    return !text_.empty() || in_.good();
  }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }
  [[nodiscard]] bool too_long() const noexcept { return text_.size() > decision_line_bytes_max; }
  [[nodiscard]] bool cut() const noexcept { return in_.eof(); }

 private:
  std::istream& in_;
  std::vector<char> piece_ = std::vector<char>(65'536);
  std::string text_;
};

class replayer {
 public:
  replay_verdict verdict;

  /// False: a decision differs.
  bool take(const json& j) {
    const auto is = j.at("is").get<std::string>();
    if (is == "lost") {
      lost(fmt::format("{} lines were lost: {}", number<std::uint64_t>(j, "lines"), j.at("why").get<std::string>()));
      return true;
    }
    const auto who = number<std::uint32_t>(j, "c");
    if (is == "opened") {
      open(who, j);
      return true;
    }
    const auto found = controllers_.find(who);
    if (found == controllers_.end()) {
      if (verdict.gaps.empty())
        begin_gap(fmt::format("controller {} was not opened before", who));
      auto& gap = verdict.gaps.back();
      gap.next_starts.try_emplace(who);
      ++gap.lines_skipped;
      ++verdict.lines_skipped;
      return true;
    }
    auto& pool = *found->second.pool;
    if (is == "decided")
      return decide(found->second, who, j);
    if (is == "up") {
      core::rank_announcement up;
      up.rank = rank_of(j);
      up.epoch = number<core::rank_epoch>(j, "epoch");
      up.kv_capacity = number<std::uint64_t>(j, "kv");
      up.max_running = number<std::uint32_t>(j, "running");
      up.chunk_tokens = number<std::uint64_t>(j, "chunk");
      up.data_parallel_size = number<std::uint32_t>(j, "size");
      up.renewed = j.at("renewed").get<bool>();
      up.state = enum_of<core::rank_state>(j, "state", core::rank_state_count);
      pool.rank_up(up, time_of(j));
    } else if (is == "paused") {
      pool.rank_paused(rank_of(j), number<core::rank_epoch>(j, "epoch"),
                       enum_of<core::rank_state>(j, "state", core::rank_state_count));
    } else if (is == "down") {
      pool.rank_down(rank_of(j), number<core::rank_epoch>(j, "epoch"),
                     enum_of<core::rank_state>(j, "state", core::rank_state_count));
    } else if (is == "progress") {
      progress(pool, j);
    } else if (is == "tick") {
      static_cast<void>(pool.ejections_over(time_of(j)));
    } else if (is == "released") {
      pool.release(number<core::request_handle>(j, "handle"), time_of(j));
    } else if (is == "ended") {
      pool.end(number<core::request_handle>(j, "handle"), time_of(j), number<std::uint32_t>(j, "generated"));
    } else if (is == "owner_gone") {
      static_cast<void>(pool.owner_gone(number<core::owner_id>(j, "owner"), time_of(j)));
    } else if (is == "report") {
      core::load_report r;
      r.rank = rank_of(j);
      r.epoch = number<core::rank_epoch>(j, "epoch");
      r.sequence = number<std::uint64_t>(j, "sequence");
      r.received_at = time_of(j);
      r.num_running = number<std::uint32_t>(j, "running");
      r.num_waiting = number<std::uint32_t>(j, "waiting");
      r.kv_used_tokens = number<std::uint64_t>(j, "kv_used");
      r.kv_total_tokens = number<std::uint64_t>(j, "kv_total");
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

  /// Of none of the controllers all is known any more, until it is opened anew.
  void lost(const std::string& what) {
    begin_gap(what);
    for (const auto& [who, gone] : controllers_)
      verdict.gaps.back().next_starts.try_emplace(who);
    controllers_.clear();
  }

 private:
  void begin_gap(const std::string& what) {
    if (!verdict.incomplete)
      verdict.incomplete = fmt::format("line {}: {}", verdict.lines, what);
    verdict.gaps.push_back({verdict.lines, what, 0, {}});
  }

  struct controller {
    std::unique_ptr<last_decision> last;
    std::unique_ptr<core::pool_controller> pool;
    std::string policy;
    std::vector<std::uint64_t> blocks;
    core::request_handle blocks_of = 0;
  };

  void open(std::uint32_t who, const json& j) {
    const auto version = number<std::int32_t>(j, "version");
    if (version != decision_log_version)
      throw std::runtime_error(
          fmt::format("version: {} is not {}, the one that is read here", version, decision_log_version));
    const auto options = pool_options_of(j.at("options"));
    controller c;
    c.last = std::make_unique<last_decision>();
    c.policy = options.policy;
    c.pool = std::make_unique<core::pool_controller>(options, nullptr, core::decision_recorders{c.last.get()});
    if (!verdict.gaps.empty() && !controllers_.contains(who))
      verdict.gaps.back().next_starts[who] = verdict.lines;
    controllers_[who] = std::move(c);
  }

  static void progress(core::pool_controller& pool, const json& j) {
    core::batch_progress p;
    p.rank = rank_of(j);
    p.epoch = number<core::rank_epoch>(j, "epoch");
    p.generated_tokens = number<std::uint64_t>(j, "generated");
    if (j.contains("owner")) // logs of earlier versions know of one owner, and do not number batches
      p.owner = number<core::owner_id>(j, "owner");
    if (j.contains("number"))
      p.batch = number<std::uint64_t>(j, "number");
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
      leg.handle = number<core::request_handle>(l, "handle");
      leg.attempt = number<std::uint32_t>(l, "attempt");
      leg.rank = rank_of(l);
      leg.epoch = number<core::rank_epoch>(l, "epoch");
      leg.prefilled = l.at("prefilled").get<bool>();
      leg.released = l.at("released").get<bool>();
      leg.prompt_tokens = number<std::uint32_t>(l, "prompt", prompt_tokens_max);
      leg.limit_tokens = leg.prompt_tokens + number<std::uint32_t>(l, "most");
      legs.push_back(std::move(leg));
    }
    static_cast<void>(pool.restore(legs, time_of(j)));
  }

  bool decide(controller& c, std::uint32_t who, const json& j) {
    core::leg_request leg;
    auto& w = leg.wanted;
    w.handle = number<core::request_handle>(j, "handle");
    w.now = time_of(j);
    leg.attempt = number<std::uint32_t>(j, "attempt");
    w.prompt_tokens = number<std::uint64_t>(j, "prompt");
    w.max_new_tokens = number<std::uint64_t>(j, "most");
    if (j.contains("pin"))
      leg.data_parallel_rank = number<std::int32_t>(j, "pin");
    if (j.contains("room"))
      w.bootstrap_room = number<std::int64_t>(j, "room");
    if (j.contains("priority"))
      w.priority = number<std::int32_t>(j, "priority");
    if (j.contains("deadline"))
      w.deadline = time_of(j, "deadline");
    if (j.contains("first_by"))
      w.first_token_by = time_of(j, "first_by");
    w.may_wait = j.value("may_wait", false);
    w.block_tokens = number<std::uint32_t>(j, "block_tokens");
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
        verdict.lines,           who, w.handle, core::to_seconds(w.now.time_since_epoch()), described(recorded),
        described(c.last->value)};
    return false;
  }

  std::map<std::uint32_t, controller> controllers_;
};

} // namespace

tl::expected<replay_verdict, std::string> replay_decisions(std::istream& log) {
  replayer r;
  std::string first_is_wrong; // unless the second shows that it is the rest of a line
  for (line_reader lines{log}; lines.next();) {
    ++r.verdict.lines;
    if (lines.too_long())
      return tl::unexpected(
          fmt::format("line {}: it has more than {} bytes", r.verdict.lines, decision_line_bytes_max));
    if (lines.cut()) { // every line that was written whole has its end
      r.lost("it is cut off");
      break;
    }
    const auto j = json::parse(lines.text(), nullptr, false);
    if (!j.is_object()) {
      auto wrong = fmt::format("line {}: \"{:.60}\" is not a JSON object", r.verdict.lines, lines.text());
      if (r.verdict.lines > 1)
        return tl::unexpected(first_is_wrong.empty() ? wrong : first_is_wrong);
      first_is_wrong = std::move(wrong);
      r.lost("its beginning was cut off");
      continue;
    }
    try {
      if (!r.take(j))
        break;
    } catch (const std::exception& e) {
      return tl::unexpected(fmt::format("line {}: {}", r.verdict.lines, e.what()));
    }
  }
  if (r.verdict.lines == 1 && !first_is_wrong.empty())
    return tl::unexpected(first_is_wrong);
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
