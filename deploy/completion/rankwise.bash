# Completion for bash: source it, or copy it to /usr/share/bash-completion/completions/rankwise.
# It asks the program itself, so it cannot fall behind.
_rankwise() {
  local current=${COMP_WORDS[COMP_CWORD]} commands=() word help
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    [[ $word == -* ]] || commands+=("$word")
  done
  # Values of options look like commands: ask with the longest beginning that the program knows.
  while :; do
    help=$("${COMP_WORDS[0]}" "${commands[@]}" --help 2>/dev/null) && break
    [ ${#commands[@]} -gt 0 ] || return
    unset 'commands[-1]'
  done
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$(grep -oE -- '--[a-z-]+' <<<"$help" | sort -u)" -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -W "$(sed -n '/^Subcommands:/,$p' <<<"$help" | grep -oE '^  [a-z-]+')" -- "$current")
  fi
}
complete -o default -F _rankwise rankwise
