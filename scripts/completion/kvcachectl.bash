# SPDX-License-Identifier: Apache-2.0
# bash completion of kvcachectl. It reads commands and options from the program's --help, so it
# always matches the program. --help shows values from a fixed set as a|b|c.

_kvcachectl_commands()
{
	"$program" --help 2>/dev/null | sed -n 's/^  \([a-z][a-z-]*\)\( .*\)\{0,1\}$/\1/p'
}

_kvcachectl()
{
	local program=${COMP_WORDS[0]} command=${COMP_WORDS[1]}
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} usage word
	COMPREPLY=()

	if ((COMP_CWORD == 1)); then
		word=$(_kvcachectl_commands)
		COMPREPLY=($(compgen -W "$word --help --version" -- "$cur"))
		return
	fi
	if [[ $command == help && $cur != -* ]]; then
		((COMP_CWORD == 2)) && COMPREPLY=($(compgen -W "$(_kvcachectl_commands)" -- "$cur"))
		return
	fi
	usage=$("$program" "$command" --help 2>/dev/null | head -n 1)
	[[ $usage ]] || return
	if [[ $cur == -* ]]; then
		usage=${usage#*kvcachectl "$command"}
		word=$(grep -o -e '--\{0,1\}[a-z][a-z]*' <<<"$usage" | grep '^-')
		COMPREPLY=($(compgen -W "$word --help" -- "$cur"))
		return
	fi
	# after an option with a value, only files and words of a fixed set can be completed
	if [[ $prev == -* && $usage =~ (\[| )"$prev "([^]|]+(\|[^]]+)?)(\]| |$) ]]; then
		word=${BASH_REMATCH[2]%% *}
		case $word in
		FILE) compopt -o filenames; COMPREPLY=($(compgen -f -- "$cur")) ;;
		*[a-z]\|*) COMPREPLY=($(compgen -W "${word//|/ }" -- "$cur")) ;;
		TIER) COMPREPLY=($(compgen -W "cpu disk dir redis s3 ext all" -- "$cur")) ;;
		esac
		return
	fi
	word=$(grep -o '\[[a-z]*|[a-z|]*\]' <<<"$usage" | tr -d '[]' | tr '|' ' ')
	compopt -o filenames
	COMPREPLY=($(compgen -W "$word" -- "$cur") $(compgen -f -- "$cur"))
}
complete -F _kvcachectl kvcachectl
